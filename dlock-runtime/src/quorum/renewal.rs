//! Keeping a lock, on a majority of the voters.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Quorum;
use super::ballot::no_quorum;
use super::member::Member;
use super::voter::{Vote, Voter};
use super::voter_set::VoterSet;
use super::votes::{Part, Votes};
use crate::backend::{BackendError, Renewed, Request};
use crate::deadline::Deadline;
use crate::store::{Due, Failure};

/// How long a renewal waits for the slower voters once a majority has answered,
/// to see whether they have lost the lease. Only a release waits for it.
const FOR_THE_OTHERS: Duration = Duration::from_millis(20);

/// The same for voters that did not have the lease, and may be given it.
const FOR_NEW_VOTERS: Duration = Duration::from_millis(200);

/// One lease of a batch, while the voters answer for it.
struct Renewal<V: Voter> {
    /// As the voters know it.
    request: Request,
    /// None: it has been given back.
    votes: Option<Arc<Votes<V>>>,
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
        let mut renewals: Vec<_> = due.iter().map(Renewal::new).collect();
        let requests: Vec<_> = renewals.iter().map(|one| one.request.clone()).collect();
        // One that is cut short is tried again, and those with it are not lost.
        let shortest = requests.iter().map(|request| request.ttl).min();
        let patience = self.patience_for(shortest.unwrap_or_default());
        let mut limit = deadline.min(self.time.after(patience));
        let mut silent = self.chosen();
        let mut questions: FuturesUnordered<_> = silent
            .iter()
            .map(|voter| {
                let renew = self.members[voter].engine.renew(&requests);
                async move { (voter, renew.await) }
            })
            .collect();
        while let Ok(Some((voter, answers))) = self.time.bound(limit, questions.next()).await {
            silent.remove(voter);
            for (renewal, answer) in renewals.iter_mut().zip(answers) {
                renewal.count(voter, answer);
            }
            let open = silent.len();
            if renewals.iter().all(|one| one.is_decided(self, open)) {
                let all_voted = renewals.iter().all(|one| one.has_voters(silent));
                limit = limit.min(self.time.after(if all_voted {
                    FOR_THE_OTHERS
                } else {
                    FOR_NEW_VOTERS
                }));
            }
        }
        drop(questions);
        self.doubt(silent);
        let limit = self.time.after(patience);
        let mended = renewals.iter_mut().map(|one| self.mend(one, limit));
        mended
            .collect::<FuturesUnordered<_>>()
            .collect::<()>()
            .await;
        renewals
            .iter()
            .map(|renewal| renewal.answer(self, sent_at))
            .collect()
    }

    /// Makes sure of a lease where that can be done. A voter that has the vote but
    /// may be behind with its token counter is raised. One that has not, since it
    /// was away or has lost its data, is asked for it again while a majority has
    /// it: so a lease outlives voters that go one after the other. It must not be
    /// asked without: somebody else may have had the lock in between.
    async fn mend(&self, renewal: &mut Renewal<V>, deadline: Deadline) {
        let Some(votes) = renewal.votes.clone() else {
            return;
        };
        // What these vote from now on counts when their counters were raised. And
        // whoever gives the lease back meanwhile must ask them too.
        votes.may_have(renewal.gone);
        let last = votes.last_token;
        let unsure = renewal.extended.without(votes.sure());
        votes.are_sure(self.raise_all(unsure, last, deadline).await);
        if !renewal.is_extended(self) {
            return;
        }
        let had = self.vote_again(&votes, renewal, deadline).await;
        let sure = self.raise_all(had, last, deadline).await;
        votes.are_sure(sure);
        renewal.extended = renewal.extended.with(sure);
        renewal.gone = renewal.gone.without(sure);
    }

    /// Asks those that have not got it for the vote of a lease that a majority has.
    /// Those that have given it now.
    async fn vote_again(
        &self,
        votes: &Votes<V>,
        renewal: &Renewal<V>,
        deadline: Deadline,
    ) -> VoterSet {
        let asked = renewal.gone.iter().map(|voter| {
            let mut asking = Asking {
                voter,
                member: &self.members[voter],
                request: &renewal.request,
                votes,
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
        let asked: FuturesUnordered<_> = asked.collect();
        let had: Vec<_> = asked.collect().await;
        had.into_iter().flatten().collect()
    }

    /// Raises the counters of these voters, if they have to be. Those that are
    /// at `last` now.
    async fn raise_all(&self, voters: VoterSet, last: u64, deadline: Deadline) -> VoterSet {
        let raised = voters.iter().map(|voter| async move {
            let raise = self.members[voter].voter().raise(last, deadline);
            raise.await.is_ok().then_some(voter)
        });
        let raised: FuturesUnordered<_> = raised.collect();
        let raised: Vec<_> = raised.collect().await;
        raised.into_iter().flatten().collect()
    }
}

/// A vote that a lease is given later. What has not been answered when this is
/// dropped, whoever gives the lease back sees to.
struct Asking<'a, V: Voter> {
    voter: usize,
    member: &'a Member<V>,
    request: &'a Request,
    votes: &'a Votes<V>,
    part: Part<V>,
}

impl<V: Voter> Drop for Asking<'_, V> {
    fn drop(&mut self) {
        if let Some(sent_at) = self.part.left.unknown {
            let engine = &self.member.engine;
            engine.note_unknown(self.request, None, sent_at);
        }
        if self.part.left.in_flight && V::lane(&self.part.attempt).is_some() {
            let part = std::mem::take(&mut self.part);
            self.votes.is_in_flight(self.voter, part);
        }
    }
}

impl<V: Voter> Renewal<V> {
    fn new(due: &Due<Quorum<V>>) -> Self {
        let votes = due.record.clone();
        let request = match &votes {
            Some(votes) => votes.request(&due.request),
            None => due.request.clone(),
        };
        Self {
            request,
            votes,
            extended: VoterSet::default(),
            gone: VoterSet::default(),
            failed: Vec::new(),
        }
    }

    fn count(&mut self, voter: usize, answer: Result<Renewed, BackendError>) {
        match answer {
            Ok(Renewed::Extended { .. }) => self.extended.insert(voter),
            Ok(Renewed::Gone) => self.gone.insert(voter),
            Err(error) => self.failed.push(error),
        }
    }

    /// Whether `open` more answers cannot change what it comes to.
    fn is_decided(&self, quorum: &Quorum<V>, open: usize) -> bool {
        self.extended.len() >= quorum.majority() || self.is_gone(quorum) || open == 0
    }

    /// Whether all of these had the vote. Else it may be asked for, once they have
    /// answered.
    fn has_voters(&self, voters: VoterSet) -> bool {
        let votes = self.votes.as_ref();
        votes.is_none_or(|votes| voters.without(votes.sure()).is_empty())
    }

    /// Whether a majority has the vote, with their counters where they must be.
    fn is_extended(&self, quorum: &Quorum<V>) -> bool {
        let votes = self.votes.as_ref();
        votes.is_some_and(|votes| self.extended.both(votes.sure()).len() >= quorum.majority())
    }

    /// So many voters have no vote of it that the others are no majority.
    fn is_gone(&self, quorum: &Quorum<V>) -> bool {
        let others = quorum.members.len() - self.gone.len();
        others < quorum.majority() || self.votes.is_none()
    }

    fn answer(&self, quorum: &Quorum<V>, sent_at: Instant) -> Result<Renewed, Failure> {
        if self.is_extended(quorum) {
            Ok(Renewed::Extended {
                sent_at: sent_at.into(),
            })
        } else if self.is_gone(quorum) {
            Ok(Renewed::Gone)
        } else {
            let answered = self.extended.len() + self.gone.len();
            let error = no_quorum(quorum.members.len(), answered, self.failed.iter());
            Err(Failure::refused(error))
        }
    }
}
