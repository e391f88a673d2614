//! Keeping a lock and giving it back, on a majority of the voters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::Quorum;
use super::ballot::no_quorum;
use super::member::{Member, Part};
use super::voter::{Vote, Voter, VoterSet};
use crate::backend::{BackendError, Owner, Released, Renewed, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Due, Failure, Freed};

/// How long a renewal waits for the slower voters once a majority has answered,
/// to see whether they have lost the lease. Only a release waits for it.
const FOR_THE_OTHERS: Duration = Duration::from_millis(20);

/// How long it waits for voters that did not have the lease, and may be given it.
const FOR_NEW_VOTERS: Duration = Duration::from_millis(200);

/// What proves a lease.
pub(crate) struct Votes<A> {
    /// As whom the voters know the holder.
    owner: Owner,
    /// The last of its token numbers.
    last_token: u64,
    state: Mutex<State<A>>,
}

struct State<A> {
    /// Who has the vote, with a counter at `last_token` or above. Only these
    /// count.
    sure: VoterSet,
    /// All who may have it.
    may_have: VoterSet,
    /// Where the vote is still on its way.
    in_flight: Vec<(usize, Part<A>)>,
}

impl<A> Votes<A> {
    pub(super) fn new(
        owner: Owner,
        last_token: u64,
        sure: VoterSet,
        may_have: VoterSet,
        in_flight: Vec<(usize, Part<A>)>,
    ) -> Self {
        Self {
            owner,
            last_token,
            state: Mutex::new(State {
                sure,
                may_have,
                in_flight,
            }),
        }
    }

    fn sure(&self) -> VoterSet {
        self.state().sure
    }

    /// These have the vote, with their counter where it must be.
    fn are_sure(&self, voters: VoterSet) {
        let mut state = self.state();
        state.sure = state.sure.with(voters);
    }

    fn state(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One lease of a batch, while the voters answer for it.
struct Renewal<V: Voter> {
    /// As the voters know it.
    request: Request,
    votes: Arc<Votes<V::Attempt>>,
    extended: VoterSet,
    gone: VoterSet,
    failed: Vec<BackendError>,
}

impl<V: Voter> Quorum<V> {
    pub(super) async fn extend(
        &self,
        due: &[Due<Self>],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        let sent_at = self.time.now();
        let mut renewals: Vec<_> = due.iter().filter_map(Renewal::new).collect();
        let requests: Vec<_> = renewals.iter().map(|one| one.request.clone()).collect();
        // One that is cut short is tried again, and those with it are not lost.
        let shortest = requests.iter().map(|request| request.ttl).min();
        let patience = self.patience_for(shortest.unwrap_or_default());
        let limit = deadline.min(self.time.after(patience));
        let mut questions = self.ask(self.chosen(), Some(limit), |member| {
            member.engine.renew(&requests)
        });
        while let Some((voter, answers)) = questions.next().await {
            for (renewal, answer) in renewals.iter_mut().zip(answers) {
                match answer {
                    Ok(Renewed::Extended { .. }) => renewal.extended.insert(voter),
                    Ok(Renewed::Gone) => renewal.gone.insert(voter),
                    Err(error) => renewal.failed.push(error),
                }
            }
            let open = questions.silent;
            if renewals.iter().all(|one| self.is_decided(one, open)) {
                // Those that had no vote may be asked for it, once they have answered.
                let had = |one: &Renewal<V>| open.without(one.votes.sure()).is_empty();
                questions.within(match renewals.iter().all(had) {
                    true => FOR_THE_OTHERS,
                    false => FOR_NEW_VOTERS,
                });
            }
        }
        self.doubt(questions.silent);
        drop(questions);
        let limit = self.time.after(patience);
        join_all(renewals.iter_mut().map(|one| self.mend(one, limit))).await;
        let mut answers = renewals.iter().map(|one| self.answer(one, sent_at));
        // Without votes, it has been given back.
        let answer = |due: &Due<Self>| due.record.as_ref().and_then(|_| answers.next());
        let answers = due.iter().map(answer);
        answers
            .map(|answer| answer.unwrap_or(Ok(Renewed::Gone)))
            .collect()
    }

    /// Whether `open` more answers cannot change what it comes to.
    fn is_decided(&self, renewal: &Renewal<V>, open: VoterSet) -> bool {
        let has_majority = renewal.extended.len() >= self.majority();
        has_majority || self.is_gone(renewal) || open.is_empty()
    }

    /// Whether a majority has the vote, with their counters where they must be.
    fn is_extended(&self, renewal: &Renewal<V>) -> bool {
        let sure = renewal.extended.both(renewal.votes.sure());
        sure.len() >= self.majority()
    }

    /// So many voters have no vote of it that the others are no majority.
    fn is_gone(&self, renewal: &Renewal<V>) -> bool {
        self.members.len() - renewal.gone.len() < self.majority()
    }

    fn answer(&self, renewal: &Renewal<V>, sent_at: Instant) -> Result<Renewed, Failure> {
        if self.is_extended(renewal) {
            Ok(Renewed::Extended {
                sent_at: sent_at.into(),
            })
        } else if self.is_gone(renewal) {
            Ok(Renewed::Gone)
        } else {
            let answered = renewal.extended.len() + renewal.gone.len();
            let error = no_quorum(self.members.len(), answered, renewal.failed.iter());
            Err(Failure::refused(error))
        }
    }

    /// Makes sure of a lease where that can be done. A voter that has the vote but
    /// may be behind with its token counter is raised. One that has not, since it
    /// was away or has lost its data, is asked for it again while a majority has
    /// it: so a lease outlives voters that go one after the other. It must not be
    /// asked without: somebody else may have had the lock in between.
    async fn mend(&self, renewal: &mut Renewal<V>, deadline: Deadline) {
        let (votes, last) = (Arc::clone(&renewal.votes), renewal.votes.last_token);
        let behind = {
            let mut state = votes.state();
            // What these vote from now on counts when their counters were raised. And
            // whoever gives the lease back meanwhile must ask them too.
            state.sure = state.sure.without(renewal.gone);
            state.may_have = state.may_have.with(renewal.gone);
            renewal.extended.without(state.sure)
        };
        let (raised, _) = self.raise(behind, behind.len(), last, deadline).await;
        votes.are_sure(raised);
        if !self.is_extended(renewal) {
            return;
        }
        let again = renewal.gone.iter().map(|voter| {
            let mut asking = Asking {
                member: &self.members[voter],
                request: &renewal.request,
                votes: &votes,
                part: Part::default(),
            };
            async move {
                let (member, request) = (asking.member, asking.request);
                let vote = member.vote(request, &mut asking.part, deadline).await;
                // If it is ours, what was under way when the lock was granted has
                // arrived.
                matches!(vote, Vote::Yes { .. }).then_some(voter)
            }
        });
        let had = join_all(again).await.into_iter().flatten().collect();
        let (raised, _) = self.raise(had, had.len(), last, deadline).await;
        votes.are_sure(raised);
    }

    /// Asks all who may have the vote, until so few are left that others can have
    /// a majority. To those the engines of the voters see.
    pub(super) async fn free(
        &self,
        request: &Request,
        votes: &Votes<V::Attempt>,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let vote = request.granted_to(votes.owner);
        let (voters, in_flight) = {
            let mut state = votes.state();
            (state.may_have, std::mem::take(&mut state.in_flight))
        };
        for (voter, part) in in_flight {
            let engine = &self.members[voter].engine;
            engine.leave_behind(&vote, part.attempt, &part.left);
        }
        let mut releases = self.ask(voters, Some(deadline), |member| {
            member.engine.release(&vote)
        });
        let harmless = self.members.len() - self.majority();
        let (mut freed, mut not_held) = (VoterSet::default(), 0);
        let mut failed = Vec::new();
        while voters.len() - freed.len() > harmless {
            match releases.next().await {
                Some((voter, Ok(released))) => {
                    freed.insert(voter);
                    not_held += usize::from(released == Released::NotHeld);
                }
                Some((_, Err(error))) => failed.push(error),
                None => {
                    self.doubt(voters.without(freed));
                    let error = no_quorum(self.members.len(), freed.len(), failed.iter());
                    return Err(Failure {
                        // Those that were reached have done it.
                        applied: Applied::Answered,
                        ..Failure::refused(error)
                    });
                }
            }
        }
        // The others are about to answer.
        tokio::task::yield_now().await;
        while let Some((voter, answer)) = releases.next_ready() {
            if answer.is_ok() {
                freed.insert(voter);
            }
        }
        drop(releases);
        let silent = voters.without(freed);
        self.doubt(silent);
        for voter in silent.iter() {
            self.members[voter].engine.give_back(&vote);
        }
        // Without these, the others are no majority: so it had ended.
        Ok(if voters.len() - not_held < self.majority() {
            Freed::NotHeld
        } else {
            Freed::Released
        })
    }
}

impl<V: Voter> Renewal<V> {
    fn new(due: &Due<Quorum<V>>) -> Option<Self> {
        let votes = Arc::clone(due.record.as_ref()?);
        Some(Self {
            request: due.request.granted_to(votes.owner),
            votes,
            extended: VoterSet::default(),
            gone: VoterSet::default(),
            failed: Vec::new(),
        })
    }
}

/// A vote that a lease is given later. What has not been answered when this is
/// dropped, whoever gives the lease back sees to.
struct Asking<'a, V: Voter> {
    member: &'a Member<V>,
    request: &'a Request,
    votes: &'a Votes<V::Attempt>,
    part: Part<V::Attempt>,
}

impl<V: Voter> Drop for Asking<'_, V> {
    fn drop(&mut self) {
        let member = self.member;
        if let Some(sent_at) = self.part.left.unknown {
            member.engine.note_unknown(self.request, None, sent_at);
        }
        if self.part.left.in_flight && V::asked_over(&self.part.attempt).is_some() {
            let part = std::mem::take(&mut self.part);
            self.votes.state().in_flight.push((member.number, part));
        }
    }
}
