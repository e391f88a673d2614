//! Taking a lock: elections, until one is won.
//!
//! Every node is asked at the same time for its vote, which is the lock on that
//! node. With the votes of a majority of all nodes the lock is had, if there is
//! time left. Without, the votes are given back at once, and another election is
//! held: after a random pause if nobody has a majority, since those who asked
//! at the same time must not do so again; and else when the holder's release is
//! heard of.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::{ServerError, Value};

use super::super::clock::Deadline;
use super::super::commands::{self, Patience};
use super::super::connection::{Connection, Lost};
use super::super::connections::NoConnection;
use super::super::errors::{Remedy, remedy};
use super::super::give_back::GiveBack;
use super::super::names::LockValue;
use super::super::scripts::Form;
use super::ballot::{Ballot, Outcome, Vote, first_token, no_quorum};
use super::held::HeldLease;
use super::nodes::{Node, NodeSet};
use super::quorum::Common;
use super::waiters::Waiting;
use crate::backend::{BackendError, BackendErrorKind, Grant, Mode, Owner, Request};

/// The window from which the pause after a split vote is drawn. It doubles each
/// time.
const FIRST_PAUSE: Duration = Duration::from_millis(3);
const LAST_PAUSE: Duration = Duration::from_millis(250);

/// Who only tries takes so many split votes for a lock that is held.
const TRIES: u32 = 10;

/// A release reaches the nodes one after the other: how long a waiter that was
/// woken by the first waits for the others.
const RELEASE_SPREADS: Duration = Duration::from_millis(20);

impl Common {
    pub(super) async fn try_acquire(
        &self,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        let mut pauses = Pauses::new(Deadline::after(self.request_timeout));
        loop {
            match self.elect(request, pauses.deadline).await? {
                Election::Won(grant) => return Ok(Some(grant)),
                Election::Held => return Ok(None),
                Election::Split if pauses.count >= TRIES => return Ok(None),
                Election::Split => {}
                Election::NoQuorum(error) if pauses.have_ended() => return Err(error),
                Election::NoQuorum(_) => {}
            }
            self.clock.sleep(pauses.next()).await;
        }
    }

    pub(super) async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let timeout = self.request_timeout;
        let mut pauses = Pauses::new(Deadline::after(timeout));
        let mut waiting = None;
        loop {
            if let Some(waiting) = &waiting {
                Waiting::forget_what_was_heard(waiting);
            }
            match self.elect(request, pauses.deadline).await? {
                Election::Won(grant) => return Ok(grant),
                Election::Split => {
                    pauses.deadline = Deadline::after(timeout);
                    self.clock.sleep(pauses.next()).await;
                }
                Election::NoQuorum(error) if pauses.have_ended() => return Err(error),
                Election::NoQuorum(_) => self.clock.sleep(pauses.next()).await,
                Election::Held => match &waiting {
                    // What was released before somebody listened was not heard:
                    // so the nodes are asked once more.
                    None => {
                        let entered = self.waiters.enter(request);
                        let limit = Deadline::after(self.patience_for(request.ttl));
                        let _ = self.clock.bound(limit, entered.listening()).await;
                        waiting = Some(entered);
                        pauses = Pauses::new(Deadline::after(timeout));
                    }
                    Some(waiting) => {
                        if waiting.woken().await {
                            let limit = Deadline::after(RELEASE_SPREADS);
                            let _ = self.clock.bound(limit, waiting.freed_by_majority()).await;
                        }
                        // Until their silence has lasted for the request timeout,
                        // but long enough for new connections in any case.
                        let silence = Deadline::from(self.waiters.last_heard(), timeout);
                        pauses = Pauses::new(silence.max(Deadline::after(timeout / 4)));
                    }
                },
            }
        }
    }

    /// Holds one election. It ends by the deadline.
    async fn elect(&self, request: &Request, end: Deadline) -> Result<Election, BackendError> {
        let sent_at = Instant::now();
        let election = Request {
            owner: Owner::unique(),
            ..request.clone()
        };
        let patience = self.patience_for(request.ttl);
        // The last one has time to ask, too.
        let deadline = end.max(Deadline::after(patience / 4)).within(patience);
        let asked = self.chosen();
        let sent: Vec<Sent> = self.nodes.iter().map(|_| OnceLock::new()).collect();
        let mut trace = Trace {
            common: self,
            election: &election,
            ballot: Ballot::new(request.mode, self.nodes.len(), asked),
            sent: &sent,
            lost: NodeSet::default(),
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
        drop(questions);
        trace.doubt();
        match trace.ballot.outcome() {
            Outcome::Won => {
                let last = trace.ballot.last_token();
                let reached = trace.ballot.reached(last);
                let behind = trace.ballot.voters().without(reached);
                let sure = match self.raise(reached, behind, last, deadline).await {
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
                trace.give_back(deadline).await;
                Ok(Election::Held)
            }
            Outcome::Split => {
                request.is_held_by_somebody();
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

/// How an election has ended for one who asked.
enum Election {
    Won(Grant),
    Held,
    Split,
    NoQuorum(BackendError),
}

/// When a request was sent to a node, and over which connection.
pub(super) type Sent = OnceLock<(Connection, Instant)>;

/// What a node has answered.
pub(super) struct Answer {
    pub(super) vote: Vote,
    /// The request was sent, and its answer will not come.
    lost: bool,
}

impl Answer {
    fn failed(error: BackendError) -> Self {
        Self {
            vote: Vote::Failed(error),
            lost: false,
        }
    }
}

/// What an election may leave at the nodes. Dropped before it was granted, it
/// is given back.
struct Trace<'a> {
    common: &'a Common,
    election: &'a Request,
    ballot: Ballot,
    sent: &'a [Sent],
    /// Nodes whose answer will not come.
    lost: NodeSet,
    granted: bool,
}

impl Trace<'_> {
    fn count(&mut self, node: usize, answer: Answer) {
        if answer.lost {
            self.lost.insert(node);
        }
        if let Vote::Failed(error) = &answer.vote {
            self.common.nodes[node].complain(error);
        }
        self.ballot.count(node, answer.vote);
    }

    /// Where something may be left: not where the answer was no, nor where
    /// nobody was asked.
    fn left_at(&self) -> NodeSet {
        let sent = |node: &usize| self.sent[*node].get().is_some();
        let may_have = |node: &usize| !matches!(self.ballot.vote(*node), Some(Vote::No(_)));
        (0..self.sent.len())
            .filter(|node| sent(node) && may_have(node))
            .collect()
    }

    /// Nodes that have not answered, but may yet.
    fn under_way(&self) -> NodeSet {
        let said = |node: &usize| matches!(self.ballot.vote(*node), Some(Vote::Yes { .. }));
        let nodes = self.left_at().without(self.lost);
        nodes.iter().filter(|node| !said(node)).collect()
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
        let under_way = self.under_way();
        let lease = HeldLease {
            owner: self.election.owner,
            last_token,
            sure,
            unsure: self.left_at().without(sure).without(under_way),
            under_way: under_way
                .iter()
                .filter_map(|node| Some((node, self.sent[node].get()?.0.clone())))
                .collect(),
        };
        for node in self.lost.iter() {
            if let Some((_, sent_at)) = self.sent[node].get() {
                let suspects = &self.common.nodes[node].core.suspects;
                suspects.add(self.election, *sent_at);
            }
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
        let mut done = NodeSet::default();
        while let Some((node, answered)) = releases.next().await {
            if answered {
                done.insert(node);
            }
        }
        drop(releases);
        for node in done.iter() {
            self.ballot.count(node, Vote::No(None));
        }
    }
}

impl Drop for Trace<'_> {
    fn drop(&mut self) {
        if self.granted {
            return;
        }
        let under_way = self.under_way();
        for node in self.left_at().iter() {
            let Some((connection, sent_at)) = self.sent[node].get() else {
                continue;
            };
            self.common.nodes[node].core.hub.give_back(GiveBack {
                request: self.election.clone(),
                behind: under_way.contains(node).then(|| connection.clone()),
                unanswered: self.lost.contains(node).then_some(*sent_at),
            });
        }
    }
}

/// The pauses between elections: drawn from the whole of a window that doubles,
/// so that of several who collide one goes first.
struct Pauses {
    deadline: Deadline,
    window: Duration,
    count: u32,
}

impl Pauses {
    fn new(deadline: Deadline) -> Self {
        Self {
            deadline,
            window: FIRST_PAUSE,
            count: 0,
        }
    }

    fn next(&mut self) -> Deadline {
        let pause = self.window.mul_f64(fastrand::f64());
        self.window = (2 * self.window).min(LAST_PAUSE);
        self.count += 1;
        Deadline::after(pause)
    }

    fn have_ended(&self) -> bool {
        self.deadline.has_passed()
    }
}

impl Node {
    /// Asks for the node's vote. `sent` is set when the request is on its way.
    pub(super) async fn vote(&self, request: &Request, sent: &Sent, deadline: Deadline) -> Answer {
        let start = Instant::now();
        let silent = || self.place().silent(start.elapsed());
        let lane = match self.core.connections.here() {
            Ok(lane) => lane,
            Err(error) => return Answer::failed(error),
        };
        let mut form = Form::Digest;
        loop {
            let connection = match lane.connection(deadline).await {
                Ok(connection) => connection,
                Err(NoConnection::Failed(error)) => return Answer::failed(error),
                Err(NoConnection::TooLate) => return Answer::failed(silent()),
            };
            let value = commands::value(&request.key);
            let commands = match request.mode {
                Mode::Write => {
                    commands::pipeline([commands::take(request), commands::draw_tokens(1), value])
                }
                Mode::Read => {
                    let process = self.core.shared.process;
                    let read = commands::acquire(form, request, process, Patience::Try);
                    commands::pipeline([read, value])
                }
            };
            let _ = sent.set((connection.clone(), Instant::now()));
            let answers = match connection.run_all(&commands, deadline).await {
                Ok(answers) => answers,
                Err(Lost::TooLate) => return Answer::failed(silent()),
                Err(lost) => {
                    lane.discard(&connection);
                    let error = match lost {
                        Lost::Broken(error) => self.place().unreachable(error),
                        Lost::Silent | Lost::TooLate => silent(),
                    };
                    return Answer {
                        vote: Vote::Failed(error),
                        lost: true,
                    };
                }
            };
            let mut answers = answers.into_iter();
            let first = answers.next().unwrap_or_default();
            let vote = match (request.mode, first) {
                (Mode::Write, Value::Okay) => match answers.next() {
                    Some(Value::Int(last)) => self.drawn(&connection, last),
                    Some(Value::ServerError(_)) => Vote::Failed(self.place().foreign_counter()),
                    _ => Vote::Failed(self.place().nonsense()),
                },
                (Mode::Write, Value::Nil) | (Mode::Read, Value::Int(0)) => {
                    self.holder(request, answers.next_back())
                }
                (Mode::Read, Value::Int(last)) => self.drawn(&connection, last),
                (_, Value::ServerError(error)) => match remedy(&error) {
                    Remedy::SendScript if form == Form::Digest => {
                        form = Form::Source;
                        continue;
                    }
                    remedy => {
                        if remedy == Remedy::Reconnect {
                            lane.discard(&connection);
                        }
                        Vote::Failed(self.refused(&request.key, &error))
                    }
                },
                _ => Vote::Failed(self.place().nonsense()),
            };
            return Answer { vote, lost: false };
        }
    }

    /// A counter that has lost what it was when the connection was made would
    /// give old numbers again. A new connection lifts it.
    fn drawn(&self, connection: &Connection, last: i64) -> Vote {
        let last = last.unsigned_abs();
        if first_token(last) > connection.token_floor() {
            return Vote::Yes { last };
        }
        connection.discard();
        Vote::Failed(BackendError::unavailable(format!(
            "{} has lost its data; the next attempt begins above its old tokens",
            self.place()
        )))
    }

    /// What stands where the lock is.
    fn holder(&self, request: &Request, value: Option<Value>) -> Vote {
        match value {
            Some(Value::BulkString(value)) => match LockValue::parse(&value) {
                Some(value) => Vote::No(Some(value)),
                None => Vote::Failed(self.place().foreign_lock(&request.key)),
            },
            Some(Value::Nil) => Vote::No(None),
            Some(Value::ServerError(error)) => Vote::Failed(self.refused(&request.key, &error)),
            _ => Vote::Failed(self.place().nonsense()),
        }
    }

    fn refused(&self, key: &Arc<str>, error: &ServerError) -> BackendError {
        match remedy(error) {
            Remedy::Foreign => self.place().foreign_lock(key),
            Remedy::ForeignCounter => self.place().foreign_counter(),
            _ => self.place().refused(error),
        }
    }

    /// Whether the node has answered that nothing of the election is left.
    async fn give_back(&self, election: &Request, deadline: Deadline) -> bool {
        let Ok(mut call) = self.core.call() else {
            return false;
        };
        call.restart(deadline);
        let release = call.ask(&election.key, |form| {
            commands::release(form, election, None)
        });
        release.await.is_ok()
    }

    /// Raises the token counter to `last`.
    pub(super) async fn raise(&self, last: u64, deadline: Deadline) -> Result<(), BackendError> {
        let mut call = self.core.call()?;
        call.restart(deadline);
        let answer = call
            .ask("", |form| commands::raise_tokens(form, last))
            .await?;
        match answer.value {
            Value::Int(counter) if counter.unsigned_abs() >= last => Ok(()),
            _ => Err(call.nonsense()),
        }
    }
}
