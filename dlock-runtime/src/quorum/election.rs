//! One election.
//!
//! Every voter is asked at the same time for its vote, which is the lock on that voter. With the
//! votes of a majority of all voters, the lock is granted. Without a majority, the votes are
//! given back at once; questions that have not been answered are left to the engines of those
//! voters.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::Quorum;
use super::ballot::{Ballot, Outcome, first_token, majority_of};
use super::counters::Raised;
use super::lease::{State, Votes};
use super::look::Listing;
use super::member::Part;
use super::subscriptions::Subscription;
use super::voter::{Vote, Voter, VoterSet};
use crate::backend::origin::unix_ms;
use crate::backend::{BackendError, Owner, Request};
use crate::deadline::Deadline;
use crate::store::{Attempt, Attempted, Behind, Ending, Failure, Granted, Take, Want};
use crate::sync::Mutex;

/// How long a won election still waits for voters to which no connection was open: at the first
/// lock of a runtime, and when a voter comes back.
const FOR_CONNECTIONS: Duration = Duration::from_millis(50);

/// What an acquisition remembers from election to election.
#[derive(Default)]
pub struct Notes<A> {
    /// The owners of the elections so far, the latest first. A vote that an earlier election has
    /// left at a voter is being given back, so it does not count as a holder of the lock.
    owners: VecDeque<Owner>,
    /// What the present election may leave at each voter. Empty if there is none.
    parts: Vec<Part<A>>,
    /// How the election is given back, once that has begun.
    ending: Option<Ending>,
    /// Set once the request waits.
    pub(super) subscription: Option<Subscription>,
    pub(super) listing: Option<Box<Listing>>,
}

/// This many owners are remembered. Older elections have been given back.
const REMEMBERED: usize = 16;

impl<A> Notes<A> {
    /// The request as the voters see it in the next election. The first election uses the
    /// request's own owner, which no other election has.
    fn next(&mut self, request: &Request) -> Result<Request, BackendError> {
        let election = match self.owners.is_empty() {
            true => request.clone(),
            false => request.again()?,
        };
        self.owners.truncate(REMEMBERED - 1);
        self.owners.push_front(election.owner);
        Ok(election)
    }

    /// How the election is given back. Nobody waits for the end of an election that could not be
    /// won: notifying the waiters of its votes would only start the next election.
    fn ending(&mut self) -> Ending {
        *self.ending.get_or_insert_with(|| {
            let voted = |part: &&Part<A>| !part.left.is_nothing();
            if self.parts.iter().filter(voted).count() >= majority_of(self.parts.len()) {
                Ending::Left
            } else {
                Ending::Outvoted
            }
        })
    }
}

impl<V: Voter> Quorum<V> {
    pub(super) async fn elect(
        &self,
        request: &Request,
        want: Want,
        attempt: Attempt<'_, Self>,
    ) -> Attempted<Take<Self>> {
        let Attempt { deadline, notes } = attempt;
        let sent_at = self.time.now();
        let candidate = notes.next(request).map_err(Failure::refused)?;
        // A release that is reported from now on is a cause to ask again.
        let since = match want {
            Want::First | Want::Try => None,
            Want::Queue { .. } => Some(self.subscription(request, notes).count()),
        };
        let patience = self.patience_for(request.ttl);
        // The last attempt of a call gets time to ask, too.
        let end = deadline
            .max(Deadline::from(sent_at, patience / 4))
            .min(Deadline::from(sent_at, patience));
        notes.ending = None;
        notes.parts.clear();
        notes.parts.resize_with(self.members.len(), Part::default);
        let (ballot, raised) = self.hold(&candidate, notes, sent_at, end).await;
        let take = match ballot.outcome() {
            Outcome::Won => {
                let Raised { sure, failed } = raised;
                if sure.len() >= self.majority() {
                    let election = self.time.now().saturating_duration_since(sent_at);
                    let last = ballot.last_token();
                    return Ok(Take::Granted(Granted {
                        token: first_token(last),
                        sent_at,
                        record: self.grant(&candidate, notes, last, sure, election),
                    }));
                }
                self.leave(request, notes);
                return Err(self.too_few(sure.len(), &failed));
            }
            Outcome::NoQuorum(error) => {
                self.give_back(&candidate, notes, end).await;
                return Err(Failure::refused(error));
            }
            Outcome::Held => since.map_or(Take::Busy, |watch| {
                Take::Behind(Behind {
                    name: Arc::clone(&request.key),
                    watch,
                })
            }),
            Outcome::Split => Take::Contended,
        };
        self.events.answered(sent_at);
        self.give_back(&candidate, notes, end).await;
        Ok(take)
    }

    /// Asks the chosen voters, until no further answer can change the outcome. If the election is
    /// won, raises their token counters.
    async fn hold(
        &self,
        candidate: &Request,
        notes: &mut Notes<V::Notes>,
        sent_at: Instant,
        deadline: Deadline,
    ) -> (Ballot, Raised) {
        let Notes { owners, parts, .. } = notes;
        let chosen = self.chosen();
        let is_connected = |voter: &usize| self.members[*voter].voter().is_connected();
        let connected: VoterSet = chosen.iter().copied().filter(is_connected).collect();
        let mut ballot = Ballot::new(candidate.mode, parts.len());
        let count = |ballot: &mut Ballot, (voter, vote): (usize, Vote)| {
            if let Vote::Failed(error) = &vote {
                self.members[voter].complain(error);
            }
            ballot.count(
                voter,
                match vote {
                    Vote::No(Some(holder)) if owners.contains(&holder.owner) => Vote::No(None),
                    vote => vote,
                },
            );
            // Noted now, since the caller may leave before the others answer.
            if ballot.is_contested() {
                candidate.note_held_at(sent_at);
            }
        };
        let mut to_ask = parts.iter_mut().enumerate();
        let mut questions = self.ask(chosen, None, |member| {
            let part = to_ask.find(|(voter, _)| *voter == member.number);
            async move {
                match part {
                    Some((_, part)) => member.vote(candidate, part, deadline).await,
                    None => unreachable!("there is one for each voter"),
                }
            }
        });
        while !ballot.is_decided(questions.silent.len())
            && let Some(answer) = questions.next().await
        {
            count(&mut ballot, answer);
        }
        if !matches!(ballot.outcome(), Outcome::Held) {
            // The others are about to answer. If all of them vote yes, no counter has to be
            // raised; if the vote is split, they show whether a holder is in the way.
            tokio::task::yield_now().await;
            while let Some(answer) = questions.next_ready() {
                count(&mut ballot, answer);
            }
        }
        let mut raised = Raised::default();
        if let Outcome::Won = ballot.outcome() {
            // A lease with few votes is lost when few voters fail.
            questions.limit = Some(self.time.after(FOR_CONNECTIONS).min(deadline));
            while !questions.silent.is_subset(&connected)
                && let Some(answer) = questions.next().await
            {
                count(&mut ballot, answer);
            }
            let limit = self.time.after(self.patience_for(candidate.ttl));
            let raising = self.raise_most(&mut ballot, &mut questions, count, limit);
            raised = raising.await;
        }
        for voter in &questions.end() | &ballot.failed() {
            self.members[voter].doubt(V::asked_over(&parts[voter].notes));
        }
        (ballot, raised)
    }

    /// The lock is granted; from here on the votes belong to the lease.
    fn grant(
        &self,
        candidate: &Request,
        notes: &mut Notes<V::Notes>,
        last: u64,
        sure: VoterSet,
        election: Duration,
    ) -> Arc<Votes<V::Notes>> {
        candidate.holds_since(unix_ms());
        if let Some(process) = candidate.owner.process() {
            self.turns.got(&candidate.key, process, election);
        }
        let (mut may_have, mut in_flight) = (sure.clone(), Vec::new());
        let parts = std::mem::take(&mut notes.parts);
        for (part, member) in parts.into_iter().zip(&self.members) {
            member.voter().given(last);
            let may_be_had = !part.left.in_flight && !part.left.is_nothing();
            let part = member.in_flight(candidate, part);
            if may_be_had || part.is_some() {
                may_have.insert(member.number);
            }
            in_flight.extend(part.map(|part| (member.number, part)));
        }
        Arc::new(Votes {
            owner: candidate.owner,
            last_token: last,
            state: Mutex::new(State {
                sure,
                may_have,
                in_flight,
            }),
        })
    }

    /// Gives back the votes that were granted, before it returns, and without waking waiters:
    /// requests that met these votes met no majority, and do not wait for their end. The other
    /// voters are left to their engines.
    async fn give_back(
        &self,
        candidate: &Request,
        notes: &mut Notes<V::Notes>,
        deadline: Deadline,
    ) {
        notes.ending();
        let had = notes.parts.iter_mut().zip(&self.members);
        let had = had.filter(|(part, _)| part.left.there && part.left.unknown.is_none());
        let releases = had.map(async |(part, member)| {
            let (voter, mut notes) = (member.voter(), V::Notes::default());
            let ending = Ending::Outvoted;
            let attempt = Attempt::new(deadline, &mut notes);
            let release = voter.release(candidate, None, ending, attempt);
            if release.await.is_ok() {
                *part = Part::default();
            }
        });
        join_all(releases).await;
        self.leave(candidate, notes);
    }

    /// Leaves the rest of an election to the engines of the voters.
    pub(super) fn leave(&self, request: &Request, notes: &mut Notes<V::Notes>) {
        let owner = notes.owners.front().copied();
        let candidate = request.granted_to(owner.unwrap_or(request.owner));
        let ending = notes.ending();
        for (mut part, member) in notes.parts.drain(..).zip(&self.members) {
            if !part.left.is_nothing() {
                part.left.ending = ending;
                let engine = &member.engine;
                engine.leave_behind(&candidate, part.notes, &part.left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Mode;

    #[test]
    fn an_earlier_election_is_nobody_else() {
        let mut notes = Notes::<()>::default();
        let request = Request::new("key", Mode::Write, Duration::from_secs(1));
        let next = |notes: &mut Notes<()>| {
            let election = notes.next(&request).expect("a random number");
            assert_eq!(request.current_owner(), election.owner);
            election.owner
        };
        let first = next(&mut notes);
        assert_eq!(first, request.owner, "it has been drawn already");
        assert!(notes.owners.contains(&first));
        assert!(!notes.owners.contains(&Owner::unique()));
        for _ in 0..REMEMBERED {
            assert_ne!(next(&mut notes), first);
        }
        assert!(
            !notes.owners.contains(&first),
            "it would grow without an end"
        );
    }
}
