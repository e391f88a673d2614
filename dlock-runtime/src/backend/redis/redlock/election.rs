//! One election.
//!
//! Every node is asked at the same time for its vote, which is the lock on that
//! node. With the votes of a majority of all nodes the lock is had. Without, they
//! are given back at once; and where no answer came, the node is told so behind
//! the request, or again until it has answered.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::ballot::{Ballot, Outcome, Vote, first_token, no_quorum};
use super::common::Common;
use super::held::HeldLease;
use super::nodes::NodeSet;
use super::vote::{Answer, Fate, Sent};
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, BackendErrorKind, Grant, Owner, Request};

/// How long one who has won waits for nodes to which there is no connection yet:
/// on the first lock of a runtime, and when a node comes back.
const FOR_CONNECTIONS: Duration = Duration::from_millis(50);

/// How an election has ended for one who asked.
pub(super) enum Election {
    Won(Grant),
    Held,
    Split,
    NoQuorum(BackendError),
}

/// The elections of one request, each with an owner of its own. What an earlier one
/// has left at a node is given back by itself, and is nobody who holds the lock.
#[derive(Default)]
pub(super) struct Campaign(VecDeque<Owner>);

impl Campaign {
    /// Older ones have been given back.
    const REMEMBERED: usize = 16;

    /// The request as the nodes are to know it in the next election. The first is
    /// for the request's own owner, which no other election has.
    fn stand(&mut self, request: &Request) -> Result<Request, BackendError> {
        let election = match self.0.is_empty() {
            true => request.clone(),
            false => request.again()?,
        };
        self.0.truncate(Self::REMEMBERED - 1);
        self.0.push_front(election.owner);
        Ok(election)
    }

    fn has_stood(&self, owner: Owner) -> bool {
        self.0.contains(&owner)
    }
}

impl Common {
    /// Holds one election of a campaign. It ends by the deadline.
    pub(super) async fn elect(
        &self,
        request: &Request,
        campaign: &mut Campaign,
        end: Deadline,
    ) -> Result<Election, BackendError> {
        let sent_at = Instant::now();
        let election = campaign.stand(request)?;
        let patience = self.patience_for(request.ttl);
        // The last one has time to ask, too.
        let deadline = end.max(Deadline::after(patience / 4)).within(patience);
        let asked = self.chosen();
        let sent: Vec<Sent> = self.nodes.iter().map(|_| OnceLock::new()).collect();
        let mut trace = Trace {
            common: self,
            campaign,
            election: &election,
            ballot: Ballot::new(request.mode, self.nodes.len(), asked),
            sent: &sent,
            answered: NodeSet::default(),
            lost: NodeSet::default(),
            given_back: NodeSet::default(),
            granted: false,
        };
        let mut questions: FuturesUnordered<_> = asked
            .iter()
            .map(|node| {
                let (asked, sent) = (&self.nodes[node], &sent[node]);
                let vote = asked.vote(&election, sent, deadline);
                async move { (node, vote.await) }
            })
            .collect();
        while !trace.ballot.is_decided() {
            match questions.next().await {
                Some((node, answer)) => trace.count(node, answer),
                None => break,
            }
        }
        if !matches!(trace.ballot.outcome(), Outcome::Held) {
            // The others are about to answer, and with all of them no counter
            // need be raised; or it shows who is in the way.
            tokio::task::yield_now().await;
            while let Some(Some((node, answer))) = questions.next().now_or_never() {
                trace.count(node, answer);
            }
        }
        if let Outcome::Won = trace.ballot.outcome() {
            // A lease on few nodes is lost with few.
            let limit = Deadline::after(FOR_CONNECTIONS).min(deadline);
            while trace.is_connecting()
                && let Ok(Some((node, answer))) = self.clock.bound(limit, questions.next()).await
            {
                trace.count(node, answer);
            }
        }
        drop(questions);
        trace.doubt();
        match trace.ballot.outcome() {
            Outcome::Won => {
                let last = trace.ballot.last_token();
                let reached = trace.ballot.reached(last);
                let behind = trace.ballot.voters().without(reached);
                let limit = Deadline::after(patience);
                let sure = match self.raise(reached, behind, last, limit).await {
                    Ok(sure) => sure,
                    Err(error) => return Ok(Election::NoQuorum(error)),
                };
                trace.grant(request, last, sure);
                Ok(Election::Won(Grant::new(
                    first_token(last).into(),
                    sent_at.into(),
                )))
            }
            Outcome::Held => {
                request.is_held_by_somebody();
                self.waiters.heard(sent_at);
                trace.give_back(deadline).await;
                Ok(Election::Held)
            }
            Outcome::Split => {
                request.is_held_by_somebody();
                self.waiters.heard(sent_at);
                trace.give_back(deadline).await;
                Ok(Election::Split)
            }
            Outcome::NoQuorum(error) => {
                trace.give_back(deadline).await;
                if error.kind() == BackendErrorKind::Unavailable {
                    Ok(Election::NoQuorum(error))
                } else {
                    Err(error)
                }
            }
        }
    }

    /// Raises the counters of `behind` until a majority has reached `last`.
    /// Those that have.
    pub(super) async fn raise(
        &self,
        mut reached: NodeSet,
        behind: NodeSet,
        last: u64,
        deadline: Deadline,
    ) -> Result<NodeSet, BackendError> {
        if reached.len() >= self.majority() {
            return Ok(reached);
        }
        let mut questions: FuturesUnordered<_> = behind
            .iter()
            .map(|node| async move { (node, self.nodes[node].raise(last, deadline).await) })
            .collect();
        let mut failed = Vec::new();
        while reached.len() < self.majority() {
            match questions.next().await {
                Some((node, Ok(()))) => reached.insert(node),
                Some((_, Err(error))) => failed.push(error),
                None => {
                    return Err(no_quorum(self.nodes.len(), reached.len(), failed.iter()));
                }
            }
        }
        Ok(reached)
    }
}

/// What an election may leave at the nodes. Dropped before it was granted, it
/// is given back.
struct Trace<'a> {
    common: &'a Common,
    campaign: &'a Campaign,
    election: &'a Request,
    ballot: Ballot,
    sent: &'a [Sent],
    answered: NodeSet,
    /// Nodes whose answer will not come.
    lost: NodeSet,
    /// Nodes that have had their vote back.
    given_back: NodeSet,
    granted: bool,
}

impl Trace<'_> {
    fn count(&mut self, node: usize, answer: Answer) {
        match answer.fate {
            Fate::Answered => self.answered.insert(node),
            Fate::Lost => self.lost.insert(node),
            Fate::Open => {}
        }
        if let Vote::Failed(error) = &answer.vote {
            self.common.nodes[node].complain(error);
        }
        let vote = match answer.vote {
            Vote::No(Some(holder)) if self.campaign.has_stood(holder.owner) => Vote::No(None),
            vote => vote,
        };
        self.ballot.count(node, vote);
    }

    /// Which nodes have, had or may get a vote of the election: not those that
    /// said no, nor those that were not asked.
    fn may_have_voted(&self) -> NodeSet {
        let sent = |node: &usize| self.sent[*node].get().is_some();
        let may_have = |node: &usize| !matches!(self.ballot.vote(*node), Some(Vote::No(_)));
        (0..self.sent.len())
            .filter(|node| sent(node) && may_have(node))
            .collect()
    }

    /// Where something may be left.
    fn left_at(&self) -> NodeSet {
        self.may_have_voted().without(self.given_back)
    }

    /// Nodes that have not answered, but may yet.
    fn in_flight(&self) -> NodeSet {
        self.left_at().without(self.lost).without(self.answered)
    }

    /// Whether a node has not been asked yet, as its connection is being made.
    fn is_connecting(&self) -> bool {
        let mut open = self.ballot.open().iter();
        open.any(|node| self.sent[node].get().is_none())
    }

    /// The election was decided without these nodes.
    fn doubt(&self) {
        let failed = |node: &usize| matches!(self.ballot.vote(*node), Some(Vote::Failed(_)));
        let failed: NodeSet = (0..self.sent.len()).filter(failed).collect();
        for node in self.ballot.open().with(failed).iter() {
            let connection = self.sent[node]
                .get()
                .map(|(connection, _)| connection.clone());
            self.common.nodes[node].doubt(connection);
        }
    }

    /// The lock is had; from here on the votes are the lease's.
    fn grant(mut self, request: &Request, last_token: u64, sure: NodeSet) {
        let in_flight = self.in_flight();
        let lease = HeldLease {
            owner: self.election.owner,
            last_token,
            sure,
            unsure: self.left_at().without(sure).without(in_flight),
            in_flight: in_flight
                .iter()
                .filter_map(|node| Some((node, self.sent[node].get()?.0.clone())))
                .collect(),
        };
        for node in self.lost.iter() {
            if let Some((_, sent_at)) = self.sent[node].get() {
                let running = &self.common.nodes[node].running;
                running.may_come(self.election, None, *sent_at);
            }
        }
        for node in &self.common.nodes {
            let highest = &node.servers().connector.highest_token;
            highest.fetch_max(last_token, Ordering::Relaxed);
        }
        self.common.held.insert(request, lease);
        self.granted = true;
    }

    /// Gives the votes back that were had, here and now, and without waking
    /// anybody: who saw them has seen no majority. The rest follows by itself.
    async fn give_back(mut self, deadline: Deadline) {
        let (common, election) = (self.common, self.election);
        let mut releases: FuturesUnordered<_> = self
            .ballot
            .voters()
            .iter()
            .map(|node| {
                let release = common.nodes[node].give_back(election, deadline);
                async move { (node, release.await) }
            })
            .collect();
        while let Some((node, answered)) = releases.next().await {
            if answered {
                self.given_back.insert(node);
            }
        }
    }
}

impl Drop for Trace<'_> {
    fn drop(&mut self) {
        if self.granted {
            return;
        }
        let in_flight = self.in_flight();
        // Nobody waits for an election that could not be won: to tell of its
        // votes would only be the cause of the next.
        let could_be_won = self.may_have_voted().len() >= self.common.majority();
        for node in self.left_at().iter() {
            let Some((connection, sent_at)) = self.sent[node].get() else {
                continue;
            };
            // Behind what was sent, nobody is told of it.
            let behind = in_flight.contains(node) || !could_be_won;
            self.common.nodes[node].leave_behind(
                self.election,
                behind.then(|| connection.clone()),
                self.lost.contains(node).then_some(*sent_at),
                !could_be_won,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Mode;

    #[test]
    fn an_earlier_election_is_nobody_else() {
        let mut campaign = Campaign::default();
        let request = Request::new("key", Mode::Write, Duration::from_secs(1));
        let stand = |campaign: &mut Campaign| {
            let election = campaign.stand(&request).expect("a random number");
            assert_eq!(request.asker(), election.owner);
            election.owner
        };
        let first = stand(&mut campaign);
        assert_eq!(first, request.owner, "it has been drawn already");
        assert!(campaign.has_stood(first));
        assert!(!campaign.has_stood(Owner::unique()));
        for _ in 0..Campaign::REMEMBERED {
            assert_ne!(stand(&mut campaign), first);
        }
        assert!(!campaign.has_stood(first), "it would grow without an end");
    }
}
