//! A store made of several: a lock counts when more than half of the voters have granted it.
//! Redlock is a quorum of servers; `quorum=masters` is a quorum of slots of a cluster.
//!
//! - A lock is held with the votes of a majority of all configured voters. An election asks them
//!   at the same time (`election`); the lock is renewed and released in the same way (`lease`). A
//!   vote is the lock on one voter.
//! - Each voter is a running engine of its own, whose cleanup gives back what a vote may have
//!   left. So a silent voter delays no other. The timing of renewals and the pause after a split
//!   vote are the work of the engine above. What this module does itself needs the answers of
//!   several voters.
//! - It gives votes back itself where its answer depends on that: those of a lost election
//!   (`election`), so that the next candidate does not meet them, and those of a lease that is
//!   released (`lease`), until they are no majority. What is not answered goes to the voters'
//!   engines, and so does what is left of a lost lease. With a renewal, it asks for the votes that
//!   the lease lacks (`lease`).
//! - Each election has an owner of its own, so that commands of one election that are still in
//!   flight cannot touch the next.
//! - There is no queue, since no voter alone could hand a lock on. A waiter listens for the
//!   release at every voter, and then asks again (`subscriptions`, `look`), in its turn
//!   (`turns`). Which voters have reported a release is noted for each key that is waited for
//!   (`subscriptions`), since the engine above would wake a waiter at the first report.
//! - Fencing tokens come from the voters' counters; `ballot` explains how, and why they rise.
//!   `counters` raises those that lag, and goes on counting votes meanwhile.
//! - A voter that does not answer is left out until it answers again (`member`).

mod ballot;
mod counters;
mod election;
mod lease;
mod look;
mod member;
mod store;
mod subscriptions;
mod turns;
pub mod voter;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use self::ballot::{majority_of, no_quorum};
use self::member::Member;
use self::subscriptions::Subscriptions;
use self::turns::Turns;
use self::voter::{Voter, VoterSet};
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::engine::time::Time;
use crate::store::Failure;

/// A majority of fewer voters could not survive the loss of one.
pub(crate) const FEWEST_VOTERS: usize = 3;

/// Each lock asks all voters, so their number is limited.
pub(crate) const MOST_VOTERS: usize = 64;

/// The voters of a quorum.
#[derive(Clone, Debug)]
pub struct Voters<C> {
    /// The settings of each voter.
    pub voters: Vec<C>,
    /// The name of the store.
    pub name: &'static str,
    /// What makes the tokens strict, for messages.
    pub strict_with: &'static str,
    /// What to use instead for permits, which a quorum does not have, and why, for messages.
    pub permits_with: &'static str,
    /// What to use instead for `once`, and why, for messages.
    pub once_with: &'static str,
}

/// A store made of several.
pub struct Quorum<V: Voter> {
    members: Vec<Arc<Member<V>>>,
    subscriptions: Arc<Subscriptions>,
    turns: Arc<Turns>,
    name: &'static str,
    events: Events,
    time: Time,
    /// How long one answer may take.
    patience: Duration,
}

impl<V: Voter> Quorum<V> {
    fn majority(&self) -> usize {
        majority_of(self.members.len())
    }

    fn all(&self) -> VoterSet {
        (0..self.members.len()).collect()
    }

    /// The voters to ask: those that answer, or all if these are no majority.
    fn chosen(&self) -> VoterSet {
        let answer = self.members.iter().filter(|member| member.answers());
        let answer: VoterSet = answer.map(|member| member.number).collect();
        if answer.len() >= self.majority() {
            answer
        } else {
            self.all()
        }
    }

    /// Something was decided without these voters, so their members check whether they answer.
    fn doubt(&self, voters: &VoterSet) {
        for &voter in voters {
            self.members[voter].doubt(None);
        }
    }

    /// Only `answered` voters have answered; the others have failed or were silent.
    fn too_few(&self, answered: usize, failed: &[BackendError]) -> Failure {
        Failure::refused(no_quorum(self.members.len(), answered, failed))
    }

    /// How long a voter may take to answer for a lease of this ttl: most of the ttl must be left
    /// when a majority has answered.
    fn patience_for(&self, ttl: Duration) -> Duration {
        self.patience.min(ttl / 4)
    }

    /// Asks these voters at the same time. Without `limit`, each question must have a limit of
    /// its own.
    fn ask<'q, F: Future>(
        &'q self,
        voters: VoterSet,
        limit: Option<Deadline>,
        mut ask: impl FnMut(&'q Arc<Member<V>>) -> F,
    ) -> Questions<'q, impl Future<Output = (usize, F::Output)>> {
        let questions = voters.iter().map(|&voter| {
            let answer = ask(&self.members[voter]);
            async move { (voter, answer.await) }
        });
        Questions {
            asked: questions.collect(),
            silent: voters,
            limit,
            time: &self.time,
        }
    }
}

/// Questions that several voters are asked at the same time.
struct Questions<'q, F> {
    asked: FuturesUnordered<F>,
    /// The voters that have not answered yet.
    silent: VoterSet,
    /// Until when answers are awaited.
    limit: Option<Deadline>,
    time: &'q Time,
}

impl<T, F: Future<Output = (usize, T)>> Questions<'_, F> {
    /// The next answer and its voter. `None`: all have answered, or the time is up.
    async fn next(&mut self) -> Option<(usize, T)> {
        let next = self.asked.next();
        let (voter, answer) = match self.limit {
            Some(limit) => self.time.bound(limit, next).await.ok()??,
            None => next.await?,
        };
        self.silent.remove(&voter);
        Some((voter, answer))
    }

    /// An answer that has already arrived, if there is one.
    fn next_ready(&mut self) -> Option<(usize, T)> {
        let (voter, answer) = self.asked.next().now_or_never()??;
        self.silent.remove(&voter);
        Some((voter, answer))
    }

    /// Stops waiting and returns the voters that have not answered.
    fn end(self) -> VoterSet {
        self.silent
    }

    /// Limits the wait for the other answers to `wait` from now.
    fn within(&mut self, wait: Duration) {
        let soon = self.time.after(wait);
        self.limit = Some(self.limit.map_or(soon, |limit| limit.min(soon)));
    }
}
