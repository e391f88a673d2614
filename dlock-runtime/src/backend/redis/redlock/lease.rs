//! Keeping a lock, and giving it back, on a majority of the nodes.

use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::ballot::{Vote, no_quorum};
use super::common::Common;
use super::held::HeldLease;
use super::nodes::NodeSet;
use super::vote::Sent;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, Released, Renewed, Request};

/// How long a renewal waits for the slower nodes once a majority has answered,
/// to see whether they have lost the lease. Only a release waits for it.
const FOR_THE_OTHERS: Duration = Duration::from_millis(20);

/// The same for nodes that did not have the lease, and may be given it.
const FOR_NEW_VOTERS: Duration = Duration::from_millis(200);

/// One lease of a batch, while the nodes answer for it.
struct Renewal<'r> {
    request: &'r Request,
    /// As the nodes know it.
    vote: Request,
    lease: Option<HeldLease>,
    extended: NodeSet,
    gone: NodeSet,
    failed: Vec<BackendError>,
}

impl Common {
    pub(crate) async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let sent_at = Instant::now();
        let mut renewals: Vec<_> = requests.iter().map(|one| self.renewal(one)).collect();
        let votes: Vec<_> = renewals.iter().map(|one| one.vote.clone()).collect();
        // One that is cut short is tried again, and those with it are not lost.
        let shortest = requests.iter().map(|request| request.ttl).min();
        let patience = self.patience_for(shortest.unwrap_or_default());
        let mut deadline = Deadline::after(patience);
        let asked = self.chosen();
        let mut questions: FuturesUnordered<_> = asked
            .iter()
            .map(|node| {
                let renew = self.nodes[node].running.renew(&votes);
                async move { (node, renew.await) }
            })
            .collect();
        let mut silent = asked;
        while let Ok(Some((node, answers))) = self.clock.bound(deadline, questions.next()).await {
            silent.remove(node);
            for (renewal, answer) in renewals.iter_mut().zip(answers) {
                renewal.count(node, answer);
            }
            let open = silent.len();
            if renewals.iter().all(|one| one.is_decided(self, open)) {
                let all_voted = renewals.iter().all(|one| one.has_voters(silent));
                deadline = deadline.within(if all_voted {
                    FOR_THE_OTHERS
                } else {
                    FOR_NEW_VOTERS
                });
            }
        }
        drop(questions);
        self.doubt(silent);
        let limit = Deadline::after(patience);
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

    fn renewal<'r>(&self, request: &'r Request) -> Renewal<'r> {
        let lease = self.held.get(request.owner);
        let owner = lease.as_ref().map_or(request.owner, |lease| lease.owner);
        Renewal {
            request,
            vote: Request {
                owner,
                ..request.clone()
            },
            lease,
            extended: NodeSet::default(),
            gone: NodeSet::default(),
            failed: Vec::new(),
        }
    }

    /// Makes sure of a lease where that can be done. A node that has the vote but
    /// may be behind with its token counter is raised. One that has not, since it
    /// was away or has lost its data, is asked for it again while a majority has
    /// it: so a lease outlives nodes that go one after the other. It must not be
    /// asked without: somebody else may have had the lock in between.
    async fn mend(&self, renewal: &mut Renewal<'_>, deadline: Deadline) {
        let Some(lease) = &renewal.lease else {
            return;
        };
        let (owner, last) = (renewal.request.owner, lease.last_token);
        let unsure = renewal.extended.without(lease.sure);
        let sure = self.raise_all(unsure, last, deadline).await;
        renewal.is_sure(sure);
        if !renewal.is_extended(self) {
            return;
        }
        // Whoever gives the lease back meanwhile must ask them too.
        self.held.may_have(owner, renewal.gone);
        let had = self.vote_again(&renewal.vote, renewal.gone, deadline).await;
        let sure = self.raise_all(had, last, deadline).await;
        renewal.is_sure(sure);
        let sure = renewal.sure();
        self.held.extended(owner, renewal.request.ttl, sure);
    }

    /// Asks these nodes for the vote of a lease that a majority has. Those that
    /// have given it now.
    async fn vote_again(&self, vote: &Request, nodes: NodeSet, deadline: Deadline) -> NodeSet {
        let asked = nodes.iter().map(|node| async move {
            let sent = Sent::new();
            let answer = self.nodes[node].vote(vote, &sent, deadline).await;
            (node, answer.vote, sent)
        });
        let answers: Vec<_> = asked.collect::<FuturesUnordered<_>>().collect().await;
        let mut had = NodeSet::default();
        for (node, answer, sent) in answers {
            match (answer, sent.get()) {
                (Vote::Yes { .. }, _) => had.insert(node),
                (Vote::Failed(_), Some((_, sent_at))) => {
                    self.nodes[node].running.may_come(vote, None, *sent_at);
                }
                // If it is ours, what was under way when the lock was granted
                // has arrived.
                (Vote::No(_) | Vote::Failed(_), _) => {}
            }
        }
        had
    }

    /// Raises the counters of these nodes, if they have to be. Those that are
    /// at `last` now.
    async fn raise_all(&self, nodes: NodeSet, last: u64, deadline: Deadline) -> NodeSet {
        let raised = nodes.iter().map(|node| async move {
            let raised = self.nodes[node].raise(last, deadline).await;
            raised.is_ok().then_some(node)
        });
        let raised: Vec<_> = raised.collect::<FuturesUnordered<_>>().collect().await;
        raised.into_iter().flatten().collect()
    }

    pub(crate) async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        let lease = self.held.get(request.owner);
        let (owner, voters) = match &lease {
            Some(lease) => (lease.owner, lease.voters()),
            // Given back before, or never had.
            None => (request.owner, self.chosen()),
        };
        let vote = Request {
            owner,
            ..request.clone()
        };
        for (node, connection) in self.held.take_in_flight(request.owner) {
            self.nodes[node].leave_behind(&vote, Some(connection), None, false);
        }
        let mut silent = voters;
        let mut releases: FuturesUnordered<_> = voters
            .iter()
            .map(|node| {
                let release = self.nodes[node].running.release(&vote);
                async move { (node, release.await) }
            })
            .collect();
        let deadline = Deadline::after(self.request_timeout);
        // With so few votes that are left, others can have a majority.
        let harmless = self.nodes.len() - self.majority();
        let mut not_held = 0;
        let mut failed = Vec::new();
        while silent.len() > harmless {
            match self.clock.bound(deadline, releases.next()).await {
                Ok(Some((node, Ok(released)))) => {
                    silent.remove(node);
                    not_held += usize::from(released == Released::NotHeld);
                }
                Ok(Some((_, Err(error)))) => failed.push(error),
                Ok(None) | Err(_) => {
                    self.doubt(silent);
                    let answered = voters.len() - silent.len();
                    return Err(no_quorum(self.nodes.len(), answered, failed.iter()));
                }
            }
        }
        // The others are about to answer.
        tokio::task::yield_now().await;
        while let Some(Some((node, answer))) = releases.next().now_or_never() {
            if answer.is_ok() {
                silent.remove(node);
            }
        }
        drop(releases);
        self.doubt(silent);
        if lease.is_some() {
            for node in silent.iter() {
                let node = &self.nodes[node];
                node.leave_behind(&vote, None, node.running.what_may_come(owner), false);
            }
            self.held.remove(request.owner);
        }
        // Without these, the others are no majority: so it had ended.
        Ok(if voters.len() - not_held < self.majority() {
            Released::NotHeld
        } else {
            Released::Released
        })
    }
}

impl Renewal<'_> {
    fn count(&mut self, node: usize, answer: Result<Renewed, BackendError>) {
        match answer {
            Ok(Renewed::Extended { .. }) => self.extended.insert(node),
            Ok(Renewed::Gone) => self.gone.insert(node),
            Err(error) => self.failed.push(error),
        }
    }

    /// Whether `open` more answers cannot change what it comes to.
    fn is_decided(&self, common: &Common, open: usize) -> bool {
        self.extended.len() >= common.majority() || self.is_gone(common) || open == 0
    }

    /// Whether all of these nodes had the vote. Else it may be asked for, once
    /// they have answered.
    fn has_voters(&self, nodes: NodeSet) -> bool {
        let lease = self.lease.as_ref();
        lease.is_none_or(|lease| nodes.without(lease.sure).is_empty())
    }

    /// The nodes that have the vote, with their counters where they must be.
    fn sure(&self) -> NodeSet {
        self.lease
            .as_ref()
            .map_or_else(NodeSet::default, |lease| self.extended.both(lease.sure))
    }

    fn is_sure(&mut self, nodes: NodeSet) {
        self.extended = self.extended.with(nodes);
        self.gone = self.gone.without(nodes);
        if let Some(lease) = &mut self.lease {
            lease.sure = lease.sure.with(nodes);
        }
    }

    fn is_extended(&self, common: &Common) -> bool {
        self.sure().len() >= common.majority()
    }

    /// So many nodes have no vote of it that the others are no majority.
    fn is_gone(&self, common: &Common) -> bool {
        common.nodes.len() - self.gone.len() < common.majority()
    }

    fn answer(&self, common: &Common, sent_at: Instant) -> Result<Renewed, BackendError> {
        if self.is_extended(common) {
            Ok(Renewed::Extended {
                sent_at: sent_at.into(),
            })
        } else if self.is_gone(common) {
            Ok(Renewed::Gone)
        } else {
            let answered = self.extended.len() + self.gone.len();
            Err(no_quorum(common.nodes.len(), answered, self.failed.iter()))
        }
    }
}
