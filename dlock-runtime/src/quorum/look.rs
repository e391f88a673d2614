//! Looking at the voters and their locks, and breaking a lock: what needs a majority of the voters,
//! and no election.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Quorum;
use super::member::Member;
use super::voter::{Voter, VoterSet};
use crate::backend::{BackendError, BackendErrorKind, HolderInfo, Listed, LockInfo, Released};
use crate::deadline::Deadline;
use crate::store::{Applied, Break, Failure, Freed, Next};

/// How long the slower voters are awaited once a majority has answered.
pub(super) const FOR_THE_OTHERS: Duration = Duration::from_millis(100);

/// How long the slower voters are awaited when the store starts.
pub(super) const AT_THE_START: Duration = Duration::from_millis(500);

/// How many locks of a list are looked at in one step.
const LOOKS_AT_ONCE: usize = 1000;

/// A list of the first locks, as far as it was read.
pub(super) struct Listing {
    /// The first keys, as far as they were not looked at. The next is the last.
    ahead: Vec<String>,
    others: usize,
    locks: Vec<LockInfo>,
}

/// A voter that is out may be missing. One that refuses fails the operation.
pub(super) fn is_out(_: usize, error: &BackendError) -> bool {
    error.kind() == BackendErrorKind::Unavailable
}

impl<V: Voter> Quorum<V> {
    /// Checks the voters at the start: a majority must answer, and none may refuse.
    pub(super) async fn see_to_voters(&self, deadline: Deadline) -> Result<(), Failure> {
        if self.members.len().is_multiple_of(2) {
            tracing::warn!(
                target: "dlock::store",
                "{} with {} nodes: one fewer would outlive the loss of as many; use an odd number",
                self.name,
                self.members.len()
            );
        }
        // Ends early enough to report what each voter has said before the deadline of all.
        let limit = self.time.remaining(deadline).mul_f64(0.9);
        let ask = async |member: &'_ Arc<Member<V>>| {
            member.engine.check(limit).await?;
            let patience = self.time.after(self.patience);
            Ok(member.voter().identity(patience).await)
        };
        let answers = self
            .ask_most(self.all(), Some(deadline), AT_THE_START, ask, is_out)
            .await
            // No retry: each voter was asked for as long as there was time.
            .map_err(|failure| failure.then(Next::Stop))?;
        let (mut missing, mut identities) = (self.all(), HashMap::new());
        for (voter, identity) in answers {
            missing.remove(&voter);
            let other = identity.and_then(|identity| identities.insert(identity, voter));
            // A server that is reached by two names would have two votes.
            if let Some(other) = other {
                let place = |voter: usize| self.members[voter].voter().place();
                let (one, other) = (place(voter.min(other)), place(voter.max(other)));
                return Err(Failure::refused(BackendError::new(
                    BackendErrorKind::Config,
                    format!("{one} and {other} are one server; name each of them once"),
                )));
            }
        }
        for voter in missing {
            let member = &self.members[voter];
            tracing::warn!(
                target: "dlock::store",
                "{} does not answer; locks go on with the other nodes, and with it once it does",
                member.voter().place()
            );
            member.falls_silent();
            member.doubt(None);
        }
        Ok(())
    }

    /// The locks of which somebody has, or may have, a majority, as far as the voters are known.
    /// Without `limit`, each question must have a limit of its own.
    pub(super) async fn agreed<'q, F>(
        &'q self,
        limit: Option<Deadline>,
        ask: impl Fn(&'q Arc<Member<V>>) -> F,
    ) -> Result<Vec<LockInfo>, Failure>
    where
        F: Future<Output = Result<Vec<LockInfo>, BackendError>>,
    {
        let answers = self.ask_chosen(limit, ask).await?;
        let unknown = self.members.len() - answers.len();
        // By key and owner: the mode, the number of votes, the longest time until the lease ends,
        // since when the lock is held, and the token.
        let mut holders = BTreeMap::new();
        // Waiters listen at every voter, so the largest number is the right one.
        let mut waiters: HashMap<String, Option<usize>> = HashMap::new();
        for lock in answers.into_iter().flatten() {
            let most = waiters.entry(lock.key.clone()).or_default();
            *most = lock.waiters.max(*most);
            for holder in lock.holders {
                let votes = holders.entry((lock.key.clone(), holder.owner));
                let (_, number, longest, since, token) =
                    votes.or_insert((lock.mode, 0, None, None, None));
                *number += 1;
                *longest = holder.expires_in.max(*longest);
                // The same at each of them, where it has been written down.
                *since = since.or(holder.since);
                *token = token.or(holder.token);
            }
        }
        let mut locks: Vec<LockInfo> = Vec::new();
        for ((key, owner), (mode, number, expires_in, since, token)) in holders {
            if number + unknown < self.majority() {
                continue;
            }
            let holder = HolderInfo::new(owner, expires_in).since_by_holder(since);
            let holder = holder.token(token);
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

    /// Takes one more step of a list of the first locks. `None`: it was not the last.
    pub(super) async fn next_of_list(
        &self,
        prefix: &str,
        most: usize,
        deadline: Deadline,
        listing: &mut Option<Box<Listing>>,
    ) -> Result<Option<Listed>, Failure> {
        let Some(listing) = listing else {
            let mut keys = self.agreed_keys(prefix).await?;
            let others = keys.len().saturating_sub(most);
            keys.truncate(most);
            keys.reverse();
            *listing = Some(Box::new(Listing {
                ahead: keys,
                others,
                locks: Vec::new(),
            }));
            return Ok(None);
        };
        let rest = listing.ahead.len().saturating_sub(LOOKS_AT_ONCE);
        let some = &listing.ahead[rest..];
        let looks = async |member: &'_ Arc<Member<V>>| {
            let asked = self.time.now();
            let locks = member.voter().look_at_each(some, deadline).await;
            locks.map_err(|failure| member.error(failure, asked))
        };
        let locks = self.agreed(Some(deadline), looks).await?;
        listing.locks.extend(locks);
        listing.ahead.truncate(rest);
        if !listing.ahead.is_empty() {
            return Ok(None);
        }
        let locks = std::mem::take(&mut listing.locks);
        Ok(Some(Listed::with_others(locks, listing.others)))
    }

    /// The keys of which a majority of the voters has, or may have, a lock. In order.
    async fn agreed_keys(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let ask = |member: &'_ Arc<Member<V>>| {
            let member = Arc::clone(member);
            async move { member.keys(prefix).await }
        };
        // Each voter has as much time for each of its steps as an answer may take.
        let answers = self.ask_chosen(None, ask).await?;
        let unknown = self.members.len() - answers.len();
        let mut votes: BTreeMap<String, usize> = BTreeMap::new();
        for key in answers.into_iter().flatten() {
            *votes.entry(key).or_default() += 1;
        }
        let agreed = votes
            .into_iter()
            .filter(|(_, number)| number + unknown >= self.majority());
        Ok(agreed.map(|(key, _)| key).collect())
    }

    /// Takes the votes of a holder away, on all voters that answer: at least a majority.
    ///
    /// A renewal that has seen a majority asks the voters without the vote for it again, and may
    /// be doing so now. If all voters have answered this break, those can only be a minority:
    /// every voter that the renewal has seen with the vote has lost it. If some have not
    /// answered, these add to that minority. The other voters are then asked again, after as long
    /// as such a renewal may take, until none of them had the vote: from then on, no renewal sees
    /// a majority.
    ///
    /// The lock was held if a majority is seen to have had the vote. A silent voter does not
    /// count, since it may or may not have had it; otherwise a vote left from a lost election
    /// would count as a lock. Once a majority was seen, the break has succeeded, even if there is
    /// no time to ask again.
    pub(super) async fn break_votes(
        &self,
        broken: &Break,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let mut voted = VoterSet::new();
        loop {
            let breaks = async |member: &'_ Arc<Member<V>>| member.engine.break_off(broken).await;
            let may_be_missing = |voter: usize, error: &BackendError| {
                self.members[voter].complain(error);
                true
            };
            let asked = self.ask_most(
                self.all(),
                Some(deadline),
                FOR_THE_OTHERS,
                breaks,
                may_be_missing,
            );
            let answers = match asked.await {
                Ok(answers) => answers,
                Err(_) if voted.len() >= self.majority() => return Ok(Freed::Released),
                // The voters that were reached have done it.
                Err(failure) => return Err(failure.with(Applied::Answered)),
            };
            let had = answers.iter().filter(|(_, had)| *had == Released::Released);
            let had: VoterSet = had.map(|(voter, _)| *voter).collect();
            let (all_answered, none_had) = (answers.len() == self.members.len(), had.is_empty());
            voted.extend(had);
            let was_held = voted.len() >= self.majority();
            if all_answered || none_had {
                return Ok(Freed::of(was_held));
            }
            // Some of the time is kept for asking again.
            let left = self.time.remaining(deadline).mul_f64(0.9);
            let again = self.time.after(self.patience.min(left));
            self.time.sleep(again).await;
            if self.time.has_passed(deadline) {
                return match was_held {
                    true => Ok(Freed::Released),
                    false => Err(Failure::silent(Applied::Answered)),
                };
            }
        }
    }

    /// The answers of the chosen voters, at least a majority. Without `limit`, each question must
    /// have a limit of its own.
    pub(super) async fn ask_chosen<'q, T, F>(
        &'q self,
        limit: Option<Deadline>,
        ask: impl Fn(&'q Arc<Member<V>>) -> F,
    ) -> Result<Vec<T>, Failure>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let may_be_missing = |voter: usize, error: &BackendError| {
            self.members[voter].complain(error);
            true
        };
        let answers = self.ask_most(self.chosen(), limit, FOR_THE_OTHERS, ask, may_be_missing);
        let answers = answers.await?.into_iter();
        Ok(answers.map(|(_, answer)| answer).collect())
    }

    /// The answers of at least a majority of all voters, and those that come within `soon` after
    /// it. `may_be_missing` decides about a voter that fails: it may be missing, or its error
    /// fails the whole operation.
    pub(super) async fn ask_most<'q, T, F>(
        &'q self,
        voters: VoterSet,
        limit: Option<Deadline>,
        soon: Duration,
        ask: impl Fn(&'q Arc<Member<V>>) -> F,
        may_be_missing: impl Fn(usize, &BackendError) -> bool,
    ) -> Result<Vec<(usize, T)>, Failure>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let mut missing = voters.clone();
        let mut questions = self.ask(voters, limit, ask);
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        while let Some((voter, answer)) = questions.next().await {
            match answer {
                Ok(answer) => {
                    missing.remove(&voter);
                    answers.push((voter, answer));
                }
                Err(error) if may_be_missing(voter, &error) => failed.push(error),
                Err(error) => return Err(Failure::refused(error)),
            }
            if answers.len() >= self.majority() {
                questions.within(soon);
            }
        }
        self.doubt(&missing);
        if answers.len() < self.majority() {
            return Err(self.too_few(answers.len(), &failed));
        }
        Ok(answers)
    }
}
