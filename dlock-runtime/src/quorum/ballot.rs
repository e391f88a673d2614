//! Counting votes. All of this is pure, so that every way an election may end can be tested
//! without a server.
//!
//! # Tokens
//!
//! Each node has a token counter. A vote draws a block of numbers from its
//! node's counter, after the vote is cast; `last` is the last of the block. A
//! grant chooses the last number `T` of its own block so that
//!
//! 1. a majority of all nodes have its vote *and* a counter of at least `T`,
//!    before the body starts (nodes that lag behind are raised to `T` first);
//! 2. of `r` voters among `n` nodes, at least `majority - (n - r)` have drawn
//!    `T` or more.
//!
//! Why every later grant has greater tokens: let `M` be the majority of (1) of
//! the earlier grant, whose last number is `S`. The later one has its votes only
//! from nodes that had been given the earlier vote back, or had let it expire,
//! and so after their counters were at `S` or above; and it draws behind its
//! vote. So each of its voters in `M` drew a block above `S`. Of the `r` voters
//! at most `n - |M|` are outside of `M`, hence at least `majority - (n - r)`
//! drew a last number of at least `S` plus a whole block. `T` is the
//! `majority - (n - r)`th highest of what was drawn, so it is one of those
//! numbers or above them. When all nodes have voted, `T` is the median, which a
//! majority has reached already: then no node need be raised.
//!
//! Votes that come while counters are raised count too. The proof does not ask
//! when a node has voted, only that it drew after its vote, and that (1) is true
//! before the body starts. With each such vote `T` is chosen again, and never
//! rises: a counter that was raised to an earlier `T` is high enough. A late
//! voter whose counter is above `T` counts as it is.

use std::fmt;

use super::voter::{Holder, Vote, VoterSet};
use crate::backend::{BackendError, BackendErrorKind, Mode};
use crate::token::TOKENS_PER_GRANT;

/// The votes of one election.
#[derive(Debug)]
pub(super) struct Ballot {
    mode: Mode,
    votes: Vec<Option<Vote>>,
}

/// How an election has ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Won,
    /// Somebody else has the lock.
    Held,
    /// Nobody has a majority, since several requests ask at the same time.
    Split,
    /// Too few nodes have answered.
    NoQuorum(BackendError),
}

/// The smallest number of nodes such that any two sets of that size have one in common.
pub(super) fn majority_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

impl Ballot {
    /// An election of `count` nodes.
    pub(super) fn new(mode: Mode, count: usize) -> Self {
        Self {
            mode,
            votes: vec![None; count],
        }
    }

    pub(super) fn count(&mut self, node: usize, vote: Vote) {
        if let Some(slot) = self.votes.get_mut(node) {
            *slot = Some(vote);
        }
    }

    pub(super) fn majority(&self) -> usize {
        majority_of(self.votes.len())
    }

    /// Nodes that have voted yes.
    pub(super) fn voters(&self) -> VoterSet {
        self.nodes(|vote| matches!(vote, Vote::Yes { .. }))
    }

    /// Nodes that have refused, or could not answer.
    pub(super) fn failed(&self) -> VoterSet {
        self.nodes(|vote| matches!(vote, Vote::Failed(_)))
    }

    fn nodes(&self, wanted: impl Fn(&Vote) -> bool) -> VoterSet {
        let votes = self.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| vote.as_ref().is_some_and(&wanted))
            .map(|(node, _)| node)
            .collect()
    }

    /// Whether the outcome is certain, whatever the `open` answers still to come are. An election
    /// that cannot be won any more also needs the answers of a majority, to know whether somebody
    /// holds the lock or too few nodes answer.
    pub(super) fn is_decided(&self, open: usize) -> bool {
        let yes = self.voters().len();
        let answered = yes + self.refusals();
        let may_be_known = answered < self.majority() && answered + open >= self.majority();
        yes >= self.majority() || (yes + open < self.majority() && !may_be_known)
    }

    /// Whether a majority has answered, but too few of them with yes.
    pub(super) fn is_contested(&self) -> bool {
        let (yes, no) = (self.voters().len(), self.refusals());
        yes < self.majority() && yes + no >= self.majority()
    }

    /// The outcome, if no more answers come.
    pub(super) fn outcome(&self) -> Outcome {
        let voters = self.voters().len();
        if voters >= self.majority() {
            return Outcome::Won;
        }
        let answered = voters + self.refusals();
        if answered < self.majority() {
            let errors = self.votes.iter().filter_map(|vote| match vote {
                Some(Vote::Failed(error)) => Some(error),
                _ => None,
            });
            return Outcome::NoQuorum(no_quorum(self.votes.len(), answered, errors));
        }
        if self.most_held() >= self.majority() {
            Outcome::Held
        } else {
            Outcome::Split
        }
    }

    /// The number of nodes that have voted no.
    fn refusals(&self) -> usize {
        self.nodes(|vote| matches!(vote, Vote::No(_))).len()
    }

    /// The number of nodes on which the strongest other holder has the lock.
    fn most_held(&self) -> usize {
        let holders = || {
            self.votes.iter().filter_map(|vote| match vote {
                Some(Vote::No(holder)) => *holder,
                _ => None,
            })
        };
        let is_same = |one: &Holder, other: &Holder| match (one.mode, other.mode) {
            (Mode::Write, Mode::Write) => one.owner == other.owner,
            // For a writer, all readers together are one holder. Readers do not exclude each
            // other.
            (Mode::Read, Mode::Read) => self.mode == Mode::Write,
            _ => false,
        };
        let strength = |one: Holder| holders().filter(|other| is_same(&one, other)).count();
        holders().map(strength).max().unwrap_or(0)
    }

    /// The last of the grant's token numbers (see the module's documentation). The election must
    /// have been won.
    pub(super) fn last_token(&self) -> u64 {
        let mut drawn: Vec<u64> = self.drawn().map(|(_, last)| last).collect();
        drawn.sort_unstable_by(|one, other| other.cmp(one));
        let missing = self.votes.len() - drawn.len();
        let place = self.majority().saturating_sub(missing).max(1);
        drawn.get(place - 1).copied().unwrap_or(0)
    }

    /// Voters whose counter has reached `last`.
    pub(super) fn reached(&self, last: u64) -> VoterSet {
        self.drawn()
            .filter(|(_, drawn)| *drawn >= last)
            .map(|(node, _)| node)
            .collect()
    }

    fn drawn(&self) -> impl Iterator<Item = (usize, u64)> {
        let votes = self.votes.iter().enumerate();
        votes.filter_map(|(node, vote)| match vote {
            Some(Vote::Yes { last }) => Some((node, *last)),
            _ => None,
        })
    }
}

/// The first of the numbers of a block whose last is `last`.
pub(crate) fn first_token(last: u64) -> u64 {
    last.saturating_sub(TOKENS_PER_GRANT - 1)
}

/// The error of an operation to which too few nodes have answered. It is a `Config` error if the
/// nodes that refuse are enough to prevent a majority.
pub(super) fn no_quorum<'e>(
    count: usize,
    answered: usize,
    errors: impl IntoIterator<Item = &'e BackendError>,
) -> BackendError {
    let majority = majority_of(count);
    let done = format_args!("{answered} of {count} nodes answered and {majority} must");
    error_of(count, done, errors)
}

/// The error of a renewal that fewer nodes than a majority have granted, while the lease may still be
/// held: those that have lost it have answered too. Its kind is as in [`no_quorum`].
pub(super) fn not_renewed<'e>(
    count: usize,
    renewed: usize,
    lost: usize,
    errors: impl IntoIterator<Item = &'e BackendError>,
) -> BackendError {
    let majority = majority_of(count);
    let done = format_args!(
        "renewed at {renewed} of {count} nodes, lost at {lost}, and {majority} must renew it"
    );
    error_of(count, done, errors)
}

/// The error, and why. `done` says what was done, and what should have been.
fn error_of<'e>(
    count: usize,
    done: fmt::Arguments<'_>,
    errors: impl IntoIterator<Item = &'e BackendError>,
) -> BackendError {
    let majority = majority_of(count);
    let mut said: Vec<String> = Vec::new();
    let mut refused = 0;
    let mut cause = None;
    for error in errors {
        if error.kind() == BackendErrorKind::Config {
            refused += 1;
            cause = Some(error);
        }
        let text = error.to_string();
        if !said.contains(&text) {
            said.push(text);
        }
        cause = cause.or(Some(error));
    }
    let kind = if refused > count - majority {
        BackendErrorKind::Config
    } else {
        BackendErrorKind::Unavailable
    };
    let silent = if said.is_empty() {
        String::from("the others were silent; check that they run and can be reached")
    } else {
        said.join("; ")
    };
    let error = BackendError::new(kind, format!("{done}: {silent}"));
    match cause {
        Some(cause) => error.with_cause(cause.clone()),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Owner;

    fn ballot(mode: Mode, votes: &[Option<Vote>]) -> Ballot {
        let mut ballot = Ballot::new(mode, votes.len());
        for (node, vote) in votes.iter().enumerate() {
            if let Some(vote) = vote {
                ballot.count(node, vote.clone());
            }
        }
        ballot
    }

    fn yes(last: u64) -> Option<Vote> {
        Some(Vote::Yes { last })
    }

    fn held(value: Holder) -> Option<Vote> {
        Some(Vote::No(Some(value)))
    }

    fn failed() -> Option<Vote> {
        Some(Vote::Failed(BackendError::unavailable("out of order")))
    }

    fn holder(mode: Mode) -> Holder {
        Holder {
            mode,
            owner: Owner::unique(),
        }
    }

    #[test]
    fn a_majority_of_all_nodes_wins() {
        for (count, needed) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)] {
            assert_eq!(majority_of(count), needed);
        }
        // Two of the two that answered are not a majority of five.
        let won = ballot(Mode::Write, &[yes(1), yes(1), None, failed(), yes(1)]);
        assert!(won.is_decided(1) && matches!(won.outcome(), Outcome::Won));
        let open = ballot(Mode::Write, &[yes(1), yes(1), None, failed(), failed()]);
        assert!(!open.is_decided(1));
        let lost = ballot(Mode::Write, &[yes(1), yes(1), failed(), failed(), failed()]);
        assert!(lost.is_decided(0));
        assert!(matches!(lost.outcome(), Outcome::NoQuorum(_)));
    }

    /// If only as many nodes are asked as are needed, the first no decides against a win, but
    /// says nothing about the others.
    #[test]
    fn a_holder_is_told_from_silence() {
        let writer = holder(Mode::Write);
        let mut ballot = Ballot::new(Mode::Write, 5);
        for node in 2..5 {
            assert!(!ballot.is_decided(5 - node), "{ballot:?}");
            ballot.count(node, Vote::No(Some(writer)));
        }
        assert!(ballot.is_decided(0));
        assert!(matches!(ballot.outcome(), Outcome::Held));

        let mut ballot = Ballot::new(Mode::Write, 5);
        ballot.count(2, Vote::No(Some(writer)));
        ballot.count(3, Vote::Failed(BackendError::unavailable("out of order")));
        assert!(ballot.is_decided(1), "a majority cannot answer any more");
    }

    #[test]
    fn a_holder_is_told_from_a_split_vote() {
        let (writer, other) = (holder(Mode::Write), holder(Mode::Write));
        let free = Some(Vote::No(None));
        for (votes, is_held) in [
            (
                [held(writer), held(writer), held(writer), yes(1), yes(1)],
                true,
            ),
            (
                [held(writer), held(writer), held(other), yes(1), yes(1)],
                false,
            ),
            ([held(writer), held(writer), free, yes(1), yes(1)], false),
        ] {
            for mode in [Mode::Read, Mode::Write] {
                let outcome = ballot(mode, &votes).outcome();
                assert_eq!(matches!(outcome, Outcome::Held), is_held, "{outcome:?}");
                assert_eq!(matches!(outcome, Outcome::Split), !is_held, "{outcome:?}");
            }
        }
        let readers = || held(holder(Mode::Read));
        let votes = [readers(), readers(), readers(), yes(1), yes(1)];
        let outcome = ballot(Mode::Write, &votes).outcome();
        assert!(matches!(outcome, Outcome::Held), "{outcome:?}");
    }

    #[test]
    fn an_error_says_what_is_wrong_with_the_nodes() {
        let votes = [yes(1), failed(), failed(), None, failed()];
        let Outcome::NoQuorum(error) = ballot(Mode::Write, &votes).outcome() else {
            panic!("a quorum");
        };
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        assert_eq!(
            error.to_string(),
            "1 of 5 nodes answered and 3 must: out of order"
        );
        let refused = Some(Vote::Failed(BackendError::new(
            BackendErrorKind::Config,
            "wrong password",
        )));
        let votes = [yes(1), refused.clone(), refused.clone(), None, refused];
        let Outcome::NoQuorum(error) = ballot(Mode::Write, &votes).outcome() else {
            panic!("a quorum");
        };
        assert_eq!(error.kind(), BackendErrorKind::Config);
    }

    /// More than half have answered, and not all of them with yes.
    #[test]
    fn an_election_that_may_still_be_won_is_open() {
        let no = || held(holder(Mode::Write));
        let open = ballot(Mode::Write, &[yes(1), yes(1), no(), no(), None]);
        assert!(!open.is_decided(1) && open.is_contested());
        assert!(open.is_decided(0));
        let won = ballot(Mode::Write, &[yes(1), yes(1), yes(1), no(), None]);
        assert!(won.is_decided(1) && !won.is_contested());
    }

    /// If the others could be a majority, waiting for them may help.
    #[test]
    fn refusals_are_a_matter_of_settings_if_they_prevent_a_majority() {
        let refused = BackendError::new(BackendErrorKind::Config, "wrong password");
        for (count, enough) in [(3, 2), (4, 2), (5, 3), (6, 3), (7, 4)] {
            for number in 0..=count {
                let error = no_quorum(count, 0, vec![&refused; number]);
                let is_config = error.kind() == BackendErrorKind::Config;
                assert_eq!(is_config, number >= enough, "{number} of {count}: {error}");
            }
        }
    }

    /// Holds elections one after the other on nodes with counters, with any majority of voters
    /// each time: tokens must rise.
    #[test]
    fn tokens_rise_whoever_votes() {
        for count in [3, 5, 7] {
            let mut counters: Vec<u64> = (0..count).map(|_| fastrand::u64(..1000)).collect();
            let mut highest = 0;
            for _ in 0..2_000 {
                let voters = fastrand::usize(majority_of(count)..=count);
                let mut nodes: Vec<usize> = (0..count).collect();
                fastrand::shuffle(&mut nodes);
                // Grants of other keys draw at some nodes only.
                counters[fastrand::usize(..count)] += TOKENS_PER_GRANT * fastrand::u64(..3);
                let mut election = Ballot::new(Mode::Write, count);
                for &node in &nodes[..voters] {
                    counters[node] += TOKENS_PER_GRANT;
                    let last = counters[node];
                    election.count(node, Vote::Yes { last });
                }
                let last = election.last_token();
                assert!(first_token(last) > highest, "{counters:?}, {highest}");
                highest = last;
                // No more nodes are raised than needed.
                let mut reached = election.reached(last).len();
                assert!(voters < count || reached >= majority_of(count));
                for &node in &nodes[..voters] {
                    if reached < majority_of(count) && counters[node] < last {
                        counters[node] = last;
                        reached += 1;
                    }
                }
                assert!(reached >= majority_of(count));
            }
        }
    }

    /// Votes that come while counters are raised count too, and some voters cannot be raised.
    #[test]
    fn tokens_rise_with_late_votes() {
        for count in [3, 4, 5, 7] {
            let majority = majority_of(count);
            let mut counters: Vec<u64> = (0..count).map(|_| fastrand::u64(..1000)).collect();
            let mut highest = 0;
            for _ in 0..2_000 {
                let in_time = fastrand::usize(majority..=count);
                let mut nodes: Vec<usize> = (0..count).collect();
                fastrand::shuffle(&mut nodes);
                let mut election = Ballot::new(Mode::Write, count);
                let (mut raised, mut last) = (VoterSet::new(), u64::MAX);
                for (voted, &node) in (1..).zip(&nodes) {
                    counters[node] += TOKENS_PER_GRANT * fastrand::u64(1..4);
                    let vote = Vote::Yes {
                        last: counters[node],
                    };
                    election.count(node, vote);
                    if voted < in_time {
                        continue;
                    }
                    assert!(
                        election.last_token() <= last,
                        "those that are raised stay so"
                    );
                    last = election.last_token();
                    for node in election.voters() {
                        if counters[node] < last && fastrand::bool() {
                            counters[node] = last;
                            raised.insert(node);
                        }
                    }
                    if (&election.reached(last) | &raised).len() >= majority {
                        assert!(first_token(last) > highest, "{counters:?}, {highest}");
                        highest = last;
                        break;
                    }
                }
            }
        }
    }
}
