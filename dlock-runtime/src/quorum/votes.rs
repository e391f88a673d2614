//! What one acquisition or lease has at the voters.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::subscriptions::Subscription;
use super::voter::Voter;
use super::voter_set::VoterSet;
use crate::backend::{BackendError, Owner, Request};
use crate::store::{Ending, LeftBehind};

/// What an acquisition remembers from election to election.
pub(crate) struct Attempt<V: Voter> {
    pub(super) owners: Owners,
    /// The one that is under way.
    pub(super) election: Option<Election<V>>,
    /// From the time it waits.
    pub(super) subscription: Option<Subscription>,
}

impl<V: Voter> Default for Attempt<V> {
    fn default() -> Self {
        Self {
            owners: Owners::default(),
            election: None,
            subscription: None,
        }
    }
}

/// The owners of a request, one for each election. What an earlier election has
/// left at a voter is given back by itself, and is nobody who holds the lock.
#[derive(Default)]
pub(super) struct Owners(VecDeque<Owner>);

impl Owners {
    /// Older ones have been given back.
    const REMEMBERED: usize = 16;

    /// The request as the voters are to know it in the next election. The first is
    /// for the request's own owner, which no other election has.
    pub(super) fn next(&mut self, request: &Request) -> Result<Request, BackendError> {
        let election = match self.0.is_empty() {
            true => request.clone(),
            false => request.again()?,
        };
        self.0.truncate(Self::REMEMBERED - 1);
        self.0.push_front(election.owner);
        Ok(election)
    }

    pub(super) fn has(&self, owner: Owner) -> bool {
        self.0.contains(&owner)
    }
}

/// What an election may leave at the voters.
pub(super) struct Election<V: Voter> {
    pub(super) request: Request,
    /// One for each voter.
    pub(super) parts: Vec<Part<V>>,
    /// As what it is given back, once that has begun.
    pub(super) ending: Option<Ending>,
}

/// What one voter was asked.
pub(super) struct Part<V: Voter> {
    pub(super) attempt: V::Attempt,
    pub(super) left: LeftBehind,
}

impl<V: Voter> Default for Part<V> {
    fn default() -> Self {
        Self {
            attempt: V::Attempt::default(),
            left: LeftBehind::default(),
        }
    }
}

impl<V: Voter> Election<V> {
    pub(super) fn new(request: Request, voters: usize) -> Self {
        Self {
            request,
            parts: (0..voters).map(|_| Part::default()).collect(),
            ending: None,
        }
    }

    /// As what it is given back. Nobody waits for an election that could not be
    /// won: to tell of its votes would only be the cause of the next.
    pub(super) fn ending(&mut self, majority: usize) -> Ending {
        *self.ending.get_or_insert_with(|| {
            let voted = |part: &&Part<V>| !part.left.is_nothing();
            if self.parts.iter().filter(voted).count() >= majority {
                Ending::Left
            } else {
                Ending::Outvoted
            }
        })
    }
}

/// What proves a lease.
pub(crate) struct Votes<V: Voter> {
    /// As whom the voters know the holder.
    pub(super) owner: Owner,
    /// The last of its token numbers.
    pub(super) last_token: u64,
    state: Mutex<State<V>>,
}

struct State<V: Voter> {
    /// Who has the vote, with a counter at `last_token` or above. Only these
    /// count.
    sure: VoterSet,
    /// Who else may have the vote.
    unsure: VoterSet,
    /// Where the vote is still on its way.
    in_flight: Vec<(usize, Part<V>)>,
}

impl<V: Voter> Votes<V> {
    pub(super) fn new(
        owner: Owner,
        last_token: u64,
        sure: VoterSet,
        unsure: VoterSet,
        in_flight: Vec<(usize, Part<V>)>,
    ) -> Self {
        Self {
            owner,
            last_token,
            state: Mutex::new(State {
                sure,
                unsure,
                in_flight,
            }),
        }
    }

    /// As the voters know the holder of this request.
    pub(super) fn request(&self, request: &Request) -> Request {
        request.granted_to(self.owner)
    }

    pub(super) fn sure(&self) -> VoterSet {
        self.state().sure
    }

    /// All who may have the vote.
    pub(super) fn voters(&self) -> VoterSet {
        let state = self.state();
        let in_flight = state.in_flight.iter().map(|(voter, _)| *voter).collect();
        state.sure.with(state.unsure).with(in_flight)
    }

    /// These have the vote, with their counter where it must be.
    pub(super) fn are_sure(&self, voters: VoterSet) {
        let mut state = self.state();
        state.sure = state.sure.with(voters);
    }

    /// These may have the vote, and it does not count.
    pub(super) fn may_have(&self, voters: VoterSet) {
        let mut state = self.state();
        state.sure = state.sure.without(voters);
        state.unsure = state.unsure.with(voters);
    }

    pub(super) fn is_in_flight(&self, voter: usize, part: Part<V>) {
        self.state().in_flight.push((voter, part));
    }

    /// What is still on its way, for whoever gives the lease back.
    pub(super) fn take_in_flight(&self) -> Vec<(usize, Part<V>)> {
        let mut state = self.state();
        let in_flight = std::mem::take(&mut state.in_flight);
        let voters = in_flight.iter().map(|(voter, _)| *voter).collect();
        state.unsure = state.unsure.with(voters);
        in_flight
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Mode;

    #[test]
    fn an_earlier_election_is_nobody_else() {
        let mut owners = Owners::default();
        let request = Request::new("key", Mode::Write, Duration::from_secs(1));
        let next = |owners: &mut Owners| {
            let election = owners.next(&request).expect("a random number");
            assert_eq!(request.asker(), election.owner);
            election.owner
        };
        let first = next(&mut owners);
        assert_eq!(first, request.owner, "it has been drawn already");
        assert!(owners.has(first));
        assert!(!owners.has(Owner::unique()));
        for _ in 0..Owners::REMEMBERED {
            assert_ne!(next(&mut owners), first);
        }
        assert!(!owners.has(first), "it would grow without an end");
    }
}
