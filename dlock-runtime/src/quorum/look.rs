//! Looking at locks: what a majority of the voters agrees on.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Quorum;
use super::ballot::no_quorum;
use super::member::Member;
use super::voter::{Holder, Voter};
use super::voter_set::VoterSet;
use crate::backend::{BackendError, HolderInfo, LockInfo, Mode};
use crate::deadline::Deadline;
use crate::store::{Failure, Waited};

/// How long the slower voters are waited for once a majority has answered.
const FOR_THE_OTHERS: Duration = Duration::from_millis(100);

impl<V: Voter> Quorum<V> {
    /// Looks at what the voters have for the locks that are waited for, and wakes
    /// who could have one.
    pub(super) async fn look(
        &self,
        waited: &mut [Waited<Self>],
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let keys: Vec<_> = waited.iter().map(|key| Arc::clone(&key.key)).collect();
        let limit = deadline.min(self.time.after(self.patience));
        let look = |member: &'_ Arc<Member<V>>| {
            let (member, keys) = (Arc::clone(member), keys.clone());
            async move {
                let asked = member.engine.time.now();
                let values = member.voter().values(&keys, limit).await;
                values.map_err(|failure| {
                    let error = member.error(failure, asked);
                    member.complain(&error);
                    error
                })
            }
        };
        let (_, answers) = self.ask_most(look, limit).await?;
        for (index, key) in waited.iter_mut().enumerate() {
            let values = || answers.iter().map(|values| values.get(index).copied());
            for waiter in &mut key.waiters {
                let in_the_way =
                    |holder: Holder| holder.mode == Mode::Write || waiter.mode == Mode::Write;
                let free = values().filter(|value| !value.flatten().is_some_and(in_the_way));
                waiter.wake |= free.count() >= self.majority();
            }
        }
        Ok(())
    }

    pub(super) async fn look_at(
        &self,
        key: &str,
        deadline: Deadline,
    ) -> Result<Option<LockInfo>, Failure> {
        let look = |member: &'_ Arc<Member<V>>| {
            let (member, key) = (Arc::clone(member), key.to_owned());
            async move {
                let lock = member.engine.inspect(&key).await?;
                Ok(lock.into_iter().collect())
            }
        };
        Ok(self.agreed(look, deadline).await?.into_iter().next())
    }

    pub(super) async fn look_for(
        &self,
        prefix: &str,
        deadline: Deadline,
    ) -> Result<Vec<LockInfo>, Failure> {
        let look = |member: &'_ Arc<Member<V>>| {
            let (member, prefix) = (Arc::clone(member), prefix.to_owned());
            async move { member.engine.list(&prefix).await }
        };
        self.agreed(look, deadline).await
    }

    /// What at least a majority has answered, and who has.
    async fn ask_most<T, F>(
        &self,
        ask: impl Fn(&Arc<Member<V>>) -> F,
        deadline: Deadline,
    ) -> Result<(VoterSet, Vec<T>), Failure>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let mut silent = self.chosen();
        let mut questions: FuturesUnordered<_> = silent
            .iter()
            .map(|voter| {
                let answer = ask(&self.members[voter]);
                async move { (voter, answer.await) }
            })
            .collect();
        let (mut answered, mut answers) = (VoterSet::default(), Vec::new());
        let mut failed = Vec::new();
        let mut limit = deadline;
        while let Ok(Some((voter, answer))) = self.time.bound(limit, questions.next()).await {
            match answer {
                Ok(answer) => {
                    silent.remove(voter);
                    answered.insert(voter);
                    answers.push(answer);
                }
                Err(error) => failed.push(error),
            }
            if answered.len() >= self.majority() {
                limit = limit.min(self.time.after(FOR_THE_OTHERS));
            }
        }
        drop(questions);
        self.doubt(silent);
        if answered.len() < self.majority() {
            let error = no_quorum(self.members.len(), answered.len(), failed.iter());
            return Err(Failure::refused(error));
        }
        Ok((answered, answers))
    }

    /// The locks that somebody has a majority of, or may have, as far as the
    /// voters are known.
    async fn agreed<F>(
        &self,
        ask: impl Fn(&Arc<Member<V>>) -> F,
        deadline: Deadline,
    ) -> Result<Vec<LockInfo>, Failure>
    where
        F: Future<Output = Result<Vec<LockInfo>, BackendError>>,
    {
        let (answered, answers) = self.ask_most(ask, deadline).await?;
        let unknown = self.members.len() - answered.len();
        let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
        for lock in answers.into_iter().flatten() {
            seen.entry(lock.key.clone()).or_default().add(lock);
        }
        let locks = seen.into_iter().filter_map(|(key, seen)| {
            let held: Vec<_> = seen
                .holders
                .into_iter()
                .filter(|(_, votes)| votes.number + unknown >= self.majority())
                .collect();
            let mode = held.first()?.1.mode;
            let holders = held
                .into_iter()
                .map(|(owner, votes)| HolderInfo::new(owner, votes.expires_in))
                .collect();
            Some(LockInfo::new(key, mode, holders, seen.waiters))
        });
        Ok(locks.collect())
    }
}

/// What the voters know of a lock.
#[derive(Default)]
struct Seen {
    /// By owner.
    holders: BTreeMap<String, Votes>,
    /// Who waits listens at every voter; the one with the most has lost none.
    waiters: usize,
}

struct Votes {
    mode: Mode,
    number: usize,
    /// The longest of what the voters say.
    expires_in: Option<Duration>,
}

impl Seen {
    fn add(&mut self, lock: LockInfo) {
        self.waiters = self.waiters.max(lock.waiters);
        for HolderInfo { owner, expires_in } in lock.holders {
            let votes = self.holders.entry(owner).or_insert(Votes {
                mode: lock.mode,
                number: 0,
                expires_in,
            });
            votes.number += 1;
            votes.expires_in = votes.expires_in.max(expires_in);
        }
    }
}
