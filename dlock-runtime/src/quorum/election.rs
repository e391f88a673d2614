//! One election.
//!
//! Every voter is asked at the same time for its vote, which is the lock on that
//! voter. With the votes of a majority of all voters the lock is had. Without, they
//! are given back at once; and what has not been answered is left to the engines of
//! those voters.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::Quorum;
use super::ballot::{Ballot, Outcome, first_token, no_quorum};
use super::voter::{Vote, Voter};
use super::voter_set::VoterSet;
use super::votes::{Attempt, Election, Owners, Part, Votes};
use crate::backend::{BackendError, Request};
use crate::deadline::Deadline;
use crate::store::{Behind, Ending, Failure, Granted, Take, Want};

/// How long one who has won waits for voters to whom there was no connection yet:
/// on the first lock of a runtime, and when a voter comes back.
const FOR_CONNECTIONS: Duration = Duration::from_millis(50);

impl<V: Voter> Quorum<V> {
    pub(super) async fn elect(
        &self,
        request: &Request,
        want: Want,
        deadline: Deadline,
        attempt: &mut Attempt<V>,
    ) -> Result<Take<Self>, Failure> {
        let sent_at = self.time.now();
        let election = attempt.owners.next(request).map_err(Failure::refused)?;
        // What is told from here on is cause to ask again.
        let subscription = match want {
            Want::First | Want::Try => None,
            Want::Queue { .. } => Some(self.subscription(request, attempt).now()),
        };
        let patience = self.patience_for(request.ttl);
        // The last one has time to ask, too.
        let end = deadline
            .max(self.time.after(patience / 4))
            .min(self.time.after(patience));
        let election = Election::new(election, self.members.len());
        let election = attempt.election.insert(election);
        let ballot = self.ask_all(election, &attempt.owners, end).await;
        match ballot.outcome() {
            Outcome::Won => {
                let last = ballot.last_token();
                let reached = ballot.reached(last);
                let behind = ballot.voters().without(reached);
                let limit = self.time.after(patience);
                match self.raise(reached, behind, last, limit).await {
                    Ok(sure) => Ok(Take::Granted(Granted {
                        token: first_token(last),
                        sent_at,
                        record: self.grant(attempt, last, sure),
                    })),
                    Err(error) => {
                        self.leave(attempt);
                        Err(Failure::refused(error))
                    }
                }
            }
            Outcome::NoQuorum(error) => {
                self.give_back(attempt, end).await;
                Err(Failure::refused(error))
            }
            outcome @ (Outcome::Held | Outcome::Split) => {
                request.is_held_by_somebody();
                self.events.heard(sent_at);
                self.give_back(attempt, end).await;
                Ok(match (outcome, subscription) {
                    (Outcome::Held, Some(since)) => Take::Behind(Behind {
                        name: Arc::clone(&request.key),
                        watch: since,
                    }),
                    (Outcome::Held, None) => Take::Busy,
                    _ => Take::Contended,
                })
            }
        }
    }

    /// Asks who is to be asked, until no answer can change the outcome.
    async fn ask_all(
        &self,
        election: &mut Election<V>,
        owners: &Owners,
        deadline: Deadline,
    ) -> Ballot {
        let Election { request, parts, .. } = election;
        let chosen = self.chosen();
        let is_connected = |voter: &usize| self.members[*voter].voter().is_connected();
        let connected = chosen.iter().filter(is_connected).collect();
        let mut ballot = Ballot::new(request.mode, parts.len(), chosen);
        let count = |ballot: &mut Ballot, (voter, vote): (usize, Vote)| {
            if let Vote::Failed(error) = &vote {
                self.members[voter].complain(error);
            }
            ballot.count(
                voter,
                match vote {
                    Vote::No(Some(holder)) if owners.has(holder.owner) => Vote::No(None),
                    vote => vote,
                },
            );
        };
        let mut questions: FuturesUnordered<_> = parts
            .iter_mut()
            .enumerate()
            .filter(|(voter, _)| chosen.contains(*voter))
            .map(|(voter, part)| {
                let vote = self.members[voter].vote(request, part, deadline);
                async move { (voter, vote.await) }
            })
            .collect();
        while !ballot.is_decided()
            && let Some(answer) = questions.next().await
        {
            count(&mut ballot, answer);
        }
        if !matches!(ballot.outcome(), Outcome::Held) {
            // The others are about to answer, and with all of them no counter
            // need be raised; or it shows who is in the way.
            tokio::task::yield_now().await;
            while let Some(Some(answer)) = questions.next().now_or_never() {
                count(&mut ballot, answer);
            }
        }
        if let Outcome::Won = ballot.outcome() {
            // A lease on few voters is lost with few.
            let limit = self.time.after(FOR_CONNECTIONS).min(deadline);
            while !ballot.open().without(connected).is_empty()
                && let Ok(Some(answer)) = self.time.bound(limit, questions.next()).await
            {
                count(&mut ballot, answer);
            }
        }
        drop(questions);
        for voter in ballot.open().with(ballot.failed()).iter() {
            self.members[voter].doubt(V::lane(&parts[voter].attempt));
        }
        ballot
    }

    /// Raises the counters of `behind` until a majority has reached `last`.
    /// Those that have.
    async fn raise(
        &self,
        mut reached: VoterSet,
        behind: VoterSet,
        last: u64,
        deadline: Deadline,
    ) -> Result<VoterSet, BackendError> {
        if reached.len() >= self.majority() {
            return Ok(reached);
        }
        let asked = self.time.now();
        let mut questions: FuturesUnordered<_> = behind
            .iter()
            .map(|voter| {
                let raise = self.members[voter].voter().raise(last, deadline);
                async move { (voter, raise.await) }
            })
            .collect();
        let mut failed = Vec::new();
        while reached.len() < self.majority() {
            match questions.next().await {
                Some((voter, Ok(()))) => reached.insert(voter),
                Some((voter, Err(failure))) => {
                    failed.push(self.members[voter].error(failure, asked));
                }
                None => {
                    return Err(no_quorum(self.members.len(), reached.len(), failed.iter()));
                }
            }
        }
        Ok(reached)
    }

    /// The lock is had; from here on the votes are the lease's.
    fn grant(&self, attempt: &mut Attempt<V>, last: u64, sure: VoterSet) -> Arc<Votes<V>> {
        let election = attempt.election.take();
        let (request, parts) = election.map_or_else(
            || unreachable!("it was held just now"),
            |election| (election.request, election.parts),
        );
        let (mut unsure, mut in_flight) = (VoterSet::default(), Vec::new());
        for (voter, part) in parts.into_iter().enumerate() {
            let member = &self.members[voter];
            member.voter().given(last);
            if part.left.in_flight {
                if V::lane(&part.attempt).is_some() {
                    in_flight.push((voter, part));
                }
                continue;
            }
            if let Some(sent_at) = part.left.unknown {
                member.engine.note_unknown(&request, None, sent_at);
            }
            if !part.left.is_nothing() && !sure.contains(voter) {
                unsure.insert(voter);
            }
        }
        let votes = Votes::new(request.owner, last, sure, unsure, in_flight);
        Arc::new(votes)
    }

    /// Gives the votes back that were had, here and now, and without waking
    /// anybody: who saw them has seen no majority. The rest follows by itself.
    async fn give_back(&self, attempt: &mut Attempt<V>, deadline: Deadline) {
        if let Some(election) = &mut attempt.election {
            election.ending(self.majority());
            let Election { request, parts, .. } = election;
            let votes = parts.iter_mut().enumerate();
            let votes = votes.filter(|(_, part)| part.left.there && part.left.unknown.is_none());
            let releases = votes.map(|(voter, part)| {
                let (voter, request) = (self.members[voter].voter(), &*request);
                async move {
                    let mut attempt = V::Attempt::default();
                    let ending = Ending::Outvoted;
                    let release = voter.release(request, None, ending, deadline, &mut attempt);
                    if release.await.is_ok() {
                        *part = Part::default();
                    }
                }
            });
            releases
                .collect::<FuturesUnordered<_>>()
                .collect::<()>()
                .await;
        }
        self.leave(attempt);
    }

    /// Leaves what may be left of an election to the engines of the voters.
    pub(super) fn leave(&self, attempt: &mut Attempt<V>) {
        let Some(mut election) = attempt.election.take() else {
            return;
        };
        let ending = election.ending(self.majority());
        for (member, mut part) in self.members.iter().zip(election.parts) {
            if !part.left.is_nothing() {
                part.left.ending = ending;
                let engine = &member.engine;
                engine.leave_behind(&election.request, part.attempt, &part.left);
            }
        }
    }
}
