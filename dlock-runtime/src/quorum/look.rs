//! Looking at the voters and their locks: what a majority of them agrees on.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Quorum;
use super::ballot::no_quorum;
use super::member::Member;
use super::voter::{Voter, VoterSet};
use crate::backend::{BackendError, BackendErrorKind, HolderInfo, LockInfo};
use crate::deadline::Deadline;
use crate::store::{Failure, Next};

/// How long the slower voters are waited for once a majority has answered.
const FOR_THE_OTHERS: Duration = Duration::from_millis(100);

/// How long they are waited for at the start.
const AT_THE_START: Duration = Duration::from_millis(500);

impl<V: Voter> Quorum<V> {
    /// A majority must answer, and none may refuse.
    pub(super) async fn see_to_voters(&self, deadline: Deadline) -> Result<(), Failure> {
        if self.members.len().is_multiple_of(2) {
            tracing::warn!(
                target: "dlock::store",
                "{} with {} nodes: one fewer would outlive the loss of as many; use an odd number",
                self.name,
                self.members.len()
            );
        }
        // What each has to say comes before all are given up.
        let limit = self.time.remaining(deadline).mul_f64(0.9);
        let mut questions = self.ask(self.all(), Some(deadline), async |member| {
            member.engine.check(limit).await?;
            let patience = self.time.after(self.patience);
            Ok::<_, BackendError>(member.voter().identity(patience).await)
        });
        let mut answered = VoterSet::default();
        let (mut identities, mut failed) = (HashMap::new(), Vec::new());
        while let Some((voter, answer)) = questions.next().await {
            match answer {
                Ok(identity) => {
                    answered.insert(voter);
                    let other = identity.and_then(|identity| identities.insert(identity, voter));
                    // A server that is reached by two names has two votes.
                    if let Some(other) = other {
                        let place = |voter: usize| self.members[voter].voter().place();
                        let (one, other) = (place(voter.min(other)), place(voter.max(other)));
                        return Err(Failure::refused(BackendError::new(
                            BackendErrorKind::Config,
                            format!("{one} and {other} are one server; name each of them once"),
                        )));
                    }
                }
                Err(error) if error.kind() != BackendErrorKind::Unavailable => {
                    return Err(Failure::refused(error));
                }
                Err(error) => failed.push(error),
            }
            if answered.len() >= self.majority() {
                questions.within(AT_THE_START);
            }
        }
        drop(questions);
        if answered.len() < self.majority() {
            let error = no_quorum(self.members.len(), answered.len(), failed.iter());
            return Err(Failure {
                // Each was asked for as long as there was time.
                next: Next::Stop,
                ..Failure::refused(error)
            });
        }
        for voter in self.all().without(answered).iter() {
            let member = &self.members[voter];
            tracing::warn!(
                target: "dlock::store",
                "{} does not answer; locks go on with the other nodes, and with it once it does",
                member.voter().place()
            );
            member.is_missing();
        }
        Ok(())
    }

    /// The locks that somebody has a majority of, or may have, as far as the
    /// voters are known.
    pub(super) async fn agreed<'q, F>(
        &'q self,
        deadline: Deadline,
        ask: impl Fn(&'q Arc<Member<V>>) -> F,
    ) -> Result<Vec<LockInfo>, Failure>
    where
        F: Future<Output = Result<Vec<LockInfo>, BackendError>>,
    {
        let answers = self.ask_most(deadline, ask).await?;
        let unknown = self.members.len() - answers.len();
        // By key and owner: their number of votes, and the longest of what the voters say.
        let mut holders = BTreeMap::new();
        // Who waits listens at every voter; the one with the most has lost none.
        let mut waiters: HashMap<String, usize> = HashMap::new();
        for lock in answers.into_iter().flatten() {
            let most = waiters.entry(lock.key.clone()).or_default();
            *most = lock.waiters.max(*most);
            for holder in lock.holders {
                let votes = holders.entry((lock.key.clone(), holder.owner));
                let (_, number, longest) = votes.or_insert((lock.mode, 0, None));
                *number += 1;
                *longest = holder.expires_in.max(*longest);
            }
        }
        let mut locks: Vec<LockInfo> = Vec::new();
        for ((key, owner), (mode, number, expires_in)) in holders {
            if number + unknown < self.majority() {
                continue;
            }
            let holder = HolderInfo::new(owner, expires_in);
            match locks.last_mut().filter(|lock| lock.key == key) {
                Some(lock) => lock.holders.push(holder),
                None => {
                    let waiters = waiters.get(&key).copied().unwrap_or_default();
                    locks.push(LockInfo::new(key, mode, vec![holder], waiters));
                }
            }
        }
        Ok(locks)
    }

    /// What at least a majority has answered.
    pub(super) async fn ask_most<'q, T, F>(
        &'q self,
        deadline: Deadline,
        ask: impl Fn(&'q Arc<Member<V>>) -> F,
    ) -> Result<Vec<T>, Failure>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let mut silent = self.chosen();
        let mut questions = self.ask(silent, Some(deadline), ask);
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        while let Some((voter, answer)) = questions.next().await {
            match answer {
                Ok(answer) => {
                    silent.remove(voter);
                    answers.push(answer);
                }
                Err(error) => {
                    self.members[voter].complain(&error);
                    failed.push(error);
                }
            }
            if answers.len() >= self.majority() {
                questions.within(FOR_THE_OTHERS);
            }
        }
        drop(questions);
        self.doubt(silent);
        if answers.len() < self.majority() {
            let error = no_quorum(self.members.len(), answers.len(), failed.iter());
            return Err(Failure::refused(error));
        }
        Ok(answers)
    }
}
