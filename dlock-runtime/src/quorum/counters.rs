//! Raising token counters, so that a grant counts at a majority. `ballot` says why.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::ballot::Ballot;
use super::voter::{Vote, Voter, VoterSet};
use super::{Questions, Quorum};
use crate::backend::BackendError;
use crate::deadline::Deadline;

/// The voters that decided the election are raised at once. Those that vote after them are raised
/// too if the first ones make no majority within this time; at once, if they no longer can. Usually
/// they do, so a late vote costs no command.
const FOR_THE_FIRST: Duration = Duration::from_millis(20);

/// How long late votes are awaited when the grant needs them. After that, another election has
/// better chances: it asks all voters anew, also those whose counters could not be raised.
const FOR_LATE_VOTES: Duration = Duration::from_millis(50);

/// What came of a won election.
#[derive(Default)]
pub(super) struct Raised {
    /// The voters with the vote and a counter that has reached the grant's token.
    pub(super) sure: VoterSet,
    /// Why others could not be raised.
    pub(super) failed: Vec<BackendError>,
}

impl<V: Voter> Quorum<V> {
    /// Raises the token counters of these voters to `last`. Returns those that are raised.
    pub(super) async fn raise(&self, voters: VoterSet, last: u64, deadline: Deadline) -> VoterSet {
        let mut raised = VoterSet::default();
        let mut questions = self.ask(voters, None, |member| member.voter().raise(last, deadline));
        while let Some((voter, answer)) = questions.next().await {
            if answer.is_ok() {
                raised.insert(voter);
            }
        }
        raised
    }

    /// Raises the token counters of a won election's voters, until a majority has reached the
    /// token. Votes that come meanwhile count too: a voter may be lost between its vote and its
    /// raise, and only a voter can stand in for it.
    pub(super) async fn raise_most<F>(
        &self,
        ballot: &mut Ballot,
        votes: &mut Questions<'_, F>,
        count: impl Fn(&mut Ballot, (usize, Vote)),
        limit: Deadline,
    ) -> Raised
    where
        F: Future<Output = (usize, Vote)>,
    {
        let sure = ballot.reached(ballot.last_token());
        if sure.len() >= self.majority() {
            return Raised {
                sure,
                failed: Vec::new(),
            };
        }
        let began = self.time.now();
        let for_the_first = Deadline::from(began, FOR_THE_FIRST);
        let raise = |voter: usize, last: u64| async move {
            let answer = self.members[voter].voter().raise(last, limit).await;
            (voter, answer)
        };
        let mut raises = FuturesUnordered::new();
        let (mut asked, mut in_flight) = (VoterSet::default(), VoterSet::default());
        let (mut raised, mut failed) = (VoterSet::default(), Vec::new());
        let mut more_votes = true;
        loop {
            // With each vote the token is the same or lower, so those that are raised stay so.
            let last = ballot.last_token();
            let sure = &ballot.reached(last) | &raised;
            if sure.len() >= self.majority() {
                return Raised { sure, failed };
            }
            let may_be_enough = |in_flight: &VoterSet| (&sure | in_flight).len() >= self.majority();
            let mut behind = &(&ballot.voters() - &sure) - &asked;
            if !may_be_enough(&in_flight) || self.time.has_passed(for_the_first) {
                raises.extend(behind.iter().map(|&voter| raise(voter, last)));
                in_flight.extend(&behind);
                asked.append(&mut behind);
            }
            if may_be_enough(&in_flight) {
                // Each question has a limit of its own.
                votes.limit = None;
            } else if more_votes {
                votes.within(FOR_LATE_VOTES);
            } else {
                return Raised { sure, failed };
            }
            tokio::select! {
                biased;
                // First, since nothing is sent to a voter that lags before this waits.
                vote = votes.next(), if more_votes => match vote {
                    Some(vote) => count(ballot, vote),
                    None => more_votes = false,
                },
                Some((voter, answer)) = raises.next() => {
                    in_flight.remove(&voter);
                    match answer {
                        Ok(()) => _ = raised.insert(voter),
                        Err(failure) => failed.push(self.members[voter].error(failure, began)),
                    }
                }
                () = self.time.sleep(for_the_first), if !behind.is_empty() => {}
            }
        }
    }
}
