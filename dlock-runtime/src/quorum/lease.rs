//! Renewing and releasing a lock on a majority of the voters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::Quorum;
use super::ballot::not_renewed;
use super::member::{Member, Part};
use super::voter::{Vote, Voter, VoterSet};
use crate::backend::{BackendError, Owner, Released, Renewed, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Due, Failure, Freed};
use crate::sync::Mutex;

/// How long a renewal waits for the slower voters once a majority has answered, to see whether they
/// have lost the lease. This holds up nobody but a release.
const FOR_THE_OTHERS: Duration = Duration::from_millis(20);

/// How long a renewal waits for voters that did not have the vote, and may be given it.
const FOR_NEW_VOTERS: Duration = Duration::from_millis(200);

/// What proves a lease.
pub struct Votes<A> {
    /// The owner under which the voters know the holder.
    pub(super) owner: Owner,
    /// The last of the token numbers of the lease.
    pub(super) last_token: u64,
    pub(super) state: Mutex<State<A>>,
}

pub(super) struct State<A> {
    /// The voters that have the vote and a counter at `last_token` or above. Only these count.
    pub(super) sure: VoterSet,
    /// All voters that may have the vote.
    pub(super) may_have: VoterSet,
    /// The voters to which the request for the vote is still in flight.
    pub(super) in_flight: Vec<(usize, Part<A>)>,
}

/// One lease of a batch, while the voters answer for it.
struct Renewal<V: Voter> {
    /// The request, with the owner that the voters know.
    request: Request,
    votes: Arc<Votes<V::Notes>>,
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
        let renewals = due.iter().map(|due| Renewal {
            request: due.request.granted_to(due.record.owner),
            votes: Arc::clone(&due.record),
            extended: VoterSet::default(),
            gone: VoterSet::default(),
            failed: Vec::new(),
        });
        let mut renewals: Vec<Renewal<V>> = renewals.collect();
        let requests: Vec<_> = renewals.iter().map(|one| one.request.clone()).collect();
        // A renewal that is cut short is tried again, and the other leases of the batch are not
        // lost.
        let shortest = requests.iter().map(|request| request.ttl).min();
        let patience = self.patience_for(shortest.unwrap_or_default());
        let limit = deadline.min(Deadline::from(sent_at, patience));
        let mut questions = self.ask(self.chosen(), Some(limit), |member| {
            member.engine.renew(&requests)
        });
        while let Some((voter, answers)) = questions.next().await {
            for (renewal, answer) in renewals.iter_mut().zip(answers) {
                match answer {
                    Ok(Renewed::Extended { .. }) => _ = renewal.extended.insert(voter),
                    Ok(Renewed::Gone) => _ = renewal.gone.insert(voter),
                    Err(error) => renewal.failed.push(error),
                }
            }
            let open = &questions.silent;
            if renewals.iter().all(|one| self.is_decided(one, open)) {
                // Voters without the vote may be asked for it again once they have answered.
                let had = |one: &Renewal<V>| open.is_subset(&one.votes.state.lock().sure);
                questions.within(match renewals.iter().all(had) {
                    true => FOR_THE_OTHERS,
                    false => FOR_NEW_VOTERS,
                });
            }
        }
        self.doubt(&questions.end());
        let limit = self.time.after(patience);
        let mended = renewals.into_iter();
        join_all(mended.map(|one| self.strengthen(one, sent_at, limit))).await
    }

    /// Whether further answers, of the voters in `open`, cannot change the result.
    fn is_decided(&self, renewal: &Renewal<V>, open: &VoterSet) -> bool {
        let has_majority = renewal.extended.len() >= self.majority();
        has_majority || self.is_lost_without(&renewal.gone) || open.is_empty()
    }

    /// Whether the voters without these are too few for a majority.
    fn is_lost_without(&self, gone: &VoterSet) -> bool {
        self.members.len() - gone.len() < self.majority()
    }

    /// Strengthens a lease where possible. A voter that has the vote, but perhaps a token counter
    /// that is behind, is raised. A voter without the vote (it was away or has lost its data) is
    /// asked for it again as long as a majority has it: so a lease survives voters that fail one
    /// after the other. Without a majority it must not be asked: another owner may have had the
    /// lock in between.
    async fn strengthen(
        &self,
        renewal: Renewal<V>,
        sent_at: Instant,
        deadline: Deadline,
    ) -> Result<Renewed, Failure> {
        let Renewal {
            request,
            votes,
            extended,
            gone,
            failed,
        } = renewal;
        let last = votes.last_token;
        let behind = {
            let mut state = votes.state.lock();
            // A vote that these voters give from now on counts only once their counters are
            // raised. And a release in the meantime must ask them too.
            state.sure = &state.sure - &gone;
            state.may_have.extend(&gone);
            &extended - &state.sure
        };
        let raised = self.raise(behind, last, deadline).await;
        let sure = {
            let mut state = votes.state.lock();
            state.sure.extend(raised);
            extended.intersection(&state.sure).count()
        };
        if sure < self.majority() {
            return match self.is_lost_without(&gone) {
                true => {
                    self.give_back_votes(&request, &votes);
                    Ok(Renewed::Gone)
                }
                false => {
                    let error = not_renewed(self.members.len(), sure, gone.len(), &failed);
                    Err(Failure::refused(error))
                }
            };
        }
        let again = gone.iter().map(|&voter| {
            let mut asking = Asking {
                member: &self.members[voter],
                request: &request,
                votes: &votes,
                part: Part::default(),
            };
            async move {
                let (member, request) = (asking.member, asking.request);
                let vote = member.vote(request, &mut asking.part, deadline).await;
                // Only these are raised: a counter counts for nothing without the vote.
                matches!(vote, Vote::Yes { .. }).then_some(voter)
            }
        });
        let had = join_all(again).await.into_iter().flatten().collect();
        let raised = self.raise(had, last, deadline).await;
        votes.state.lock().sure.extend(raised);
        Ok(Renewed::Extended {
            sent_at: sent_at.into(),
        })
    }

    /// Gives back what is left of a lost lease, without waiting for it: the body may continue for
    /// a long time.
    fn give_back_votes(&self, vote: &Request, votes: &Votes<V::Notes>) {
        for voter in self.may_have(vote, votes) {
            self.members[voter].engine.give_back(vote);
        }
    }

    /// All voters that may have the vote. Requests for it that are in flight are left to their
    /// engines.
    fn may_have(&self, vote: &Request, votes: &Votes<V::Notes>) -> VoterSet {
        let (voters, in_flight) = {
            let mut state = votes.state.lock();
            let in_flight = std::mem::take(&mut state.in_flight);
            (state.may_have.clone(), in_flight)
        };
        for (voter, part) in in_flight {
            let engine = &self.members[voter].engine;
            engine.leave_behind(vote, part.notes, &part.left);
        }
        voters
    }

    /// Asks all voters that may have the vote, until so few of them remain that another owner can
    /// have a majority. The engines of the remaining voters see to those.
    pub(super) async fn free(
        &self,
        request: &Request,
        votes: &Votes<V::Notes>,
        deadline: Deadline,
    ) -> Result<Freed, Failure> {
        let vote = request.granted_to(votes.owner);
        if let Some(process) = request.owner.process() {
            self.turns.released(&request.key, process, self.time.now());
        }
        let voters = self.may_have(&vote, votes);
        let mut releases = self.ask(voters.clone(), Some(deadline), |member| {
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
                    self.doubt(&(&voters - &freed));
                    // The voters that were reached have released it.
                    let failure = self.too_few(freed.len(), &failed);
                    return Err(failure.with(Applied::Answered));
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
        let silent = &voters - &freed;
        self.doubt(&silent);
        for voter in silent {
            self.members[voter].engine.give_back(&vote);
        }
        // The voters that still had the vote are no majority: the lease had ended.
        Ok(Freed::of(voters.len() - not_held >= self.majority()))
    }
}

/// The request for a vote that a lease is given later. If it is dropped before the answer, the
/// request goes to `in_flight`, and the release of the lease sees to it.
struct Asking<'a, V: Voter> {
    member: &'a Member<V>,
    request: &'a Request,
    votes: &'a Votes<V::Notes>,
    part: Part<V::Notes>,
}

impl<V: Voter> Drop for Asking<'_, V> {
    fn drop(&mut self) {
        let part = std::mem::take(&mut self.part);
        if let Some(part) = self.member.in_flight(self.request, part) {
            let in_flight = (self.member.number, part);
            self.votes.state.lock().in_flight.push(in_flight);
        }
    }
}
