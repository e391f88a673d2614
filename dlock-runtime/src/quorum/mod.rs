//! A store made of several: a lock counts when more than half of the voters have
//! it. Redlock is this over servers, `quorum=masters` over slots of a cluster.
//!
//! - A lock is had with the votes of a majority of all configured voters, who are
//!   asked at the same time ([`election`]); it is renewed and released in the same
//!   way ([`renewal`], [`release`]). A vote is the lock on one voter.
//! - Each voter is a running engine of its own, and what a vote may have left is
//!   given back by that engine's cleanup: one that is silent holds up no other. Here
//!   are neither waiters, nor give-backs, nor the timing of renewals.
//! - Each election has an owner of its own, so that what is still in flight of one
//!   cannot touch the next.
//! - There is no queue: no voter alone could hand a lock on. Who waits listens for
//!   the release at every voter, and then asks again ([`subscriptions`], [`look`]).
//! - Fencing tokens come from the voters' counters; [`ballot`] says how, and why
//!   they rise.
//! - A voter that does not answer is left out until it does ([`member`]).

mod ballot;
mod check;
mod election;
mod look;
mod member;
mod release;
mod renewal;
mod store;
mod subscriptions;
pub(crate) mod voter;
mod voter_set;
mod votes;

use std::sync::Arc;
use std::time::Duration;

use self::ballot::majority_of;
use self::member::Member;
use self::subscriptions::Subscriptions;
use self::voter::Voter;
#[cfg(feature = "redis")]
pub(crate) use self::voter_set::MOST_VOTERS;
use self::voter_set::VoterSet;
use crate::engine::events::Events;
use crate::engine::time::Time;

/// A majority of fewer could not outlive the loss of one.
#[cfg(feature = "redis")]
pub(crate) const FEWEST_VOTERS: usize = 3;

/// Who votes.
#[derive(Clone, Debug)]
pub(crate) struct Voters<C> {
    pub(crate) voters: Vec<C>,
    pub(crate) name: &'static str,
    /// What makes the tokens strict.
    pub(crate) strict_with: &'static str,
}

/// A store made of several.
pub(crate) struct Quorum<V: Voter> {
    members: Vec<Arc<Member<V>>>,
    subscriptions: Arc<Subscriptions>,
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

    /// Those to ask: who answers, or all if they are too few.
    fn chosen(&self) -> VoterSet {
        let answer: VoterSet = (0..self.members.len())
            .filter(|&voter| self.members[voter].answers())
            .collect();
        if answer.len() >= self.majority() {
            answer
        } else {
            self.all()
        }
    }

    /// Something was decided without these.
    fn doubt(&self, voters: VoterSet) {
        for voter in voters.iter() {
            self.members[voter].doubt(None);
        }
    }

    /// How long a voter may take to answer for a lease of this ttl: most of the
    /// ttl must be left when a majority has.
    fn patience_for(&self, ttl: Duration) -> Duration {
        self.patience.min(ttl / 4)
    }
}
