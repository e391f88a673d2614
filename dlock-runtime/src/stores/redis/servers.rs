//! One command and its answer: over which connection it goes, and what it means
//! that there is none, or an error.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, ServerError, Value};

use super::batcher::{How, Lost};
use super::commands;
use super::connection::Connection;
use super::connections::{Connections, RuntimeConnection};
use super::connector::Connector;
use super::errors::{RetryPolicy, classify};
use super::names::Keyspace;
use super::scripts;
use super::timer::Sending;
use super::topology::Topology;
use crate::backend::{BackendError, LockInfo, Renewed, Request};
use crate::deadline::Deadline;
use crate::store::{Applied, Cause, Failure, Next};

/// So many keys are asked for in one command: the server does nothing else
/// meanwhile.
const KEYS_AT_ONCE: usize = 1000;

/// So many leases are extended in one go. More would keep the server from
/// answering others, and their answers from being read.
const RENEWED_AT_ONCE: usize = 256;

/// The servers of a store, as they are reached from any runtime.
pub(super) struct Servers {
    /// What they have in common, and how the one is connected to if there is one.
    pub(super) connector: Arc<Connector>,
    pub(super) route: Route,
}

/// Which of them has a lock.
pub(super) enum Route {
    /// There is one. It may be the node of a cluster that has the slot which votes.
    One(Arc<Connections>, Option<Arc<Topology>>),
    /// Each slot has a node.
    BySlot(Arc<Topology>),
}

/// What an operation remembers from attempt to attempt.
#[derive(Default)]
pub(crate) struct Attempt {
    /// Commands are on their way over this connection.
    pub(super) in_flight: Option<Connection>,
    pub(super) listing: Option<Box<Listing>>,
}

/// How far a list has come.
pub(super) struct Listing {
    /// To the servers that are still to be asked.
    pub(super) servers: VecDeque<Arc<RuntimeConnection>>,
    pub(super) cursor: u64,
    /// By key: a scan may show one twice, and so may two nodes when its slot moves.
    pub(super) locks: BTreeMap<String, LockInfo>,
}

/// What a server has said.
pub(super) struct Answer {
    pub(super) value: Value,
    /// Where it came from.
    pub(super) from: Connection,
    /// When the command was sent.
    pub(super) sent_at: Instant,
}

impl Servers {
    pub(super) fn space(&self) -> &Keyspace {
        &self.connector.space
    }

    /// The connections, if one server has all locks.
    pub(super) fn one(&self) -> Option<&Arc<Connections>> {
        match &self.route {
            Route::One(one, _) => Some(one),
            Route::BySlot(_) => None,
        }
    }

    /// The cluster, if it is one, or a slot of one.
    pub(super) fn topology(&self) -> Option<&Arc<Topology>> {
        match &self.route {
            Route::One(_, topology) => topology.as_ref(),
            Route::BySlot(topology) => Some(topology),
        }
    }

    /// The connection of the runtime that this is called on, to where a lock is.
    pub(super) async fn connection(
        &self,
        key: &str,
        deadline: Deadline,
    ) -> Result<Connection, Failure> {
        match &self.route {
            Route::One(one, _) => one.connection(deadline).await,
            Route::BySlot(topology) => {
                let slot = self.space().slot(key);
                topology.connection(slot, deadline).await
            }
        }
    }

    /// Sends one command to where a lock is.
    pub(super) async fn ask(
        &self,
        key: &str,
        deadline: Deadline,
        attempt: &mut Attempt,
        build: impl Fn() -> Cmd + Sync,
    ) -> Result<Answer, Failure> {
        self.exchange(key, How::Plain, deadline, attempt, build)
            .await
    }

    /// The same, alone or with others.
    pub(super) async fn exchange(
        &self,
        key: &str,
        how: How,
        deadline: Deadline,
        attempt: &mut Attempt,
        build: impl Fn() -> Cmd + Sync,
    ) -> Result<Answer, Failure> {
        let from = self.connection(key, deadline).await?;
        let at = Sending::now(deadline);
        attempt.in_flight = Some(from.clone());
        let answer = from.run(build(), how, at).await;
        let [value, _] = self.hear(&from, attempt, at.at, answer)?;
        let answer = Answer {
            value,
            from,
            sent_at: at.at,
        };
        if let Value::ServerError(_) = answer.value {
            return Box::pin(self.follow(key, deadline, answer, attempt, &build)).await;
        }
        Ok(answer)
    }

    /// A script that the server does not know is sent in full, and what is ahead at
    /// the node that is about to get its slot is asked for there. Neither is a
    /// repetition: the command was not run.
    async fn follow(
        &self,
        key: &str,
        deadline: Deadline,
        mut answer: Answer,
        attempt: &mut Attempt,
        build: &(impl Fn() -> Cmd + Sync),
    ) -> Result<Answer, Failure> {
        let (mut in_full, mut ahead) = (false, false);
        while let Value::ServerError(error) = answer.value {
            let mut from = answer.from;
            let policy = classify(&error);
            let next = match self.topology() {
                Some(topology) if policy == RetryPolicy::Ask && !ahead => {
                    topology.named(&error, from.address())
                }
                _ => None,
            };
            match next {
                Some(next) => {
                    from = next.connection(deadline).await?;
                    ahead = true;
                }
                None if policy == RetryPolicy::SendScript && !in_full => in_full = true,
                None => return Err(self.refused(&from, key, error, deadline, attempt).await),
            }
            let command = scripts::in_form(build(), in_full);
            // The one right behind the other.
            let asking = ahead.then(commands::asking);
            let commands = commands::pipeline(asking.into_iter().chain([command]));
            let (answers, sent_at) = self.ask_all(&from, &commands, deadline, attempt).await?;
            answer = Answer {
                value: answers.into_iter().next_back().unwrap_or_default(),
                from,
                sent_at,
            };
        }
        Ok(answer)
    }

    /// Sends commands together over a connection: as many answers as there were
    /// commands, and when they were sent.
    pub(super) async fn ask_all(
        &self,
        to: &Connection,
        commands: &Pipeline,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<(Vec<Value>, Instant), Failure> {
        let sent_at = Instant::now();
        attempt.in_flight = Some(to.clone());
        let answers = to.run_all(commands, deadline).await;
        Ok((self.hear(to, attempt, sent_at, answers)?, sent_at))
    }

    /// What these locks hold, behind another command if there is one.
    pub(super) async fn values(
        &self,
        keys: &[Arc<str>],
        first: Option<Cmd>,
        deadline: Deadline,
    ) -> Result<Vec<Value>, Failure> {
        let from = self.connection("", deadline).await?;
        let looks = keys.chunks(KEYS_AT_ONCE);
        let looks = looks.map(|keys| commands::values(self.space(), keys.iter().map(|key| &**key)));
        let commands = commands::pipeline(first.into_iter().chain(looks));
        let attempt = &mut Attempt::default();
        let (answers, _) = self.ask_all(&from, &commands, deadline, attempt).await?;
        let mut values = Vec::with_capacity(keys.len());
        for answer in answers {
            match answer {
                Value::Array(some) => values.extend(some),
                Value::ServerError(error) => {
                    return Err(self.refused(&from, "", error, deadline, attempt).await);
                }
                _ => {}
            }
        }
        Ok(values)
    }

    async fn renew_one(&self, request: &Request, deadline: Deadline) -> Result<Renewed, Failure> {
        let build = || commands::renew(self.space(), request);
        let attempt = &mut Attempt::default();
        // In a cluster it has less time than an answer may take. With the others, it
        // shows all the same when its connection is dead.
        let (key, how) = (&request.key, How::WithTheNext);
        let asked = self.exchange(key, how, deadline, attempt, build);
        let answer = asked.await?;
        read_renewal(&answer.value, answer.sent_at).ok_or_else(|| self.nonsense(&answer.from))
    }

    pub(super) async fn renew_together(
        &self,
        requests: &[&Request],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        in_parts(requests, |request| self.renew_one(request, deadline)).await
    }

    /// The nodes side by side: one that is silent must not cost the leases on the
    /// others. What is asked of one node goes out together.
    pub(super) async fn renew_by_node(
        &self,
        topology: &Topology,
        requests: &[&Request],
        deadline: Deadline,
    ) -> Vec<Result<Renewed, Failure>> {
        let mut of_nodes: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, request) in requests.iter().enumerate() {
            let node = topology.map.owner(self.space().slot(&request.key));
            of_nodes.entry(node).or_default().push(index);
        }
        let of_nodes = of_nodes.into_values().map(|indices| async {
            let of_node: Vec<_> = indices.iter().map(|&index| requests[index]).collect();
            let renewed = self.renew_together(&of_node, deadline).await;
            indices.into_iter().zip(renewed).collect::<Vec<_>>()
        });
        let mut renewed: Vec<_> = join_all(of_nodes).await.into_iter().flatten().collect();
        renewed.sort_unstable_by_key(|(index, _)| *index);
        renewed.into_iter().map(|(_, renewed)| renewed).collect()
    }

    /// With an answer, nothing is on its way any more. A connection that is broken,
    /// or on which nothing is heard, is replaced.
    pub(super) fn hear<T>(
        &self,
        from: &Connection,
        attempt: &mut Attempt,
        sent_at: Instant,
        answer: Result<T, Lost>,
    ) -> Result<T, Failure> {
        let topology = self.topology();
        let lost = match answer {
            Ok(answer) => {
                attempt.in_flight = None;
                return Ok(answer);
            }
            Err(lost) => lost,
        };
        if !matches!(lost, Lost::TooLate) {
            from.discard();
        }
        if let Some(topology) = topology {
            topology.map.refresh_soon();
        }
        let applied = match &lost {
            Lost::TooLate => Applied::OnItsWay,
            Lost::Broken(_) | Lost::Silent => {
                attempt.in_flight = None;
                Applied::Unknown { sent_at }
            }
        };
        let cause = match lost {
            Lost::Broken(error) => Cause::Error(from.endpoint().unreachable(error)),
            Lost::Silent | Lost::TooLate => Cause::Silence,
        };
        Err(Failure {
            cause,
            next: Next::Pause,
            applied,
        })
    }

    /// What an error answer means. A script that fails is not undone.
    pub(super) async fn refused(
        &self,
        from: &Connection,
        key: &str,
        error: ServerError,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Failure {
        let (endpoint, policy) = (from.endpoint(), classify(&error));
        let cause = match policy {
            RetryPolicy::Foreign => {
                // Who leaves meanwhile may have left something.
                attempt.in_flight = Some(from.clone());
                let foreign = self.foreign(from, key, deadline).await;
                attempt.in_flight = None;
                foreign
            }
            RetryPolicy::ForeignCounter => endpoint.foreign_counter(key),
            _ => endpoint.refused(&error),
        };
        let next = match policy {
            RetryPolicy::Retry => Next::Pause,
            RetryPolicy::Reconnect => {
                from.discard();
                if let Some(topology) = self.topology() {
                    topology.map.refresh_soon();
                }
                Next::Pause
            }
            RetryPolicy::Moved | RetryPolicy::Ask | RetryPolicy::Cluster => {
                self.redirected(from, &error)
            }
            _ => Next::Stop,
        };
        let was_sent_on = matches!(policy, RetryPolicy::Moved | RetryPolicy::Ask);
        Failure {
            cause: Cause::Error(cause),
            next,
            applied: if was_sent_on {
                Applied::No
            } else {
                Applied::Answered
            },
        }
    }

    /// Another node has the slot of a lock, or none has.
    fn redirected(&self, from: &Connection, error: &ServerError) -> Next {
        match &self.route {
            // Nobody can follow.
            Route::One(_, None) => Next::Stop,
            // The next connection goes to where the slot is.
            Route::One(_, Some(_)) => {
                if self.connector.locator.redirected(error, from.address()) {
                    from.discard();
                }
                Next::Pause
            }
            Route::BySlot(topology) => {
                topology.map.redirected(error, from.address());
                match classify(error) {
                    RetryPolicy::Moved => Next::Now,
                    _ => Next::Pause,
                }
            }
        }
    }

    /// Says which of the keys is not dlock's.
    pub(super) async fn foreign(
        &self,
        from: &Connection,
        key: &str,
        deadline: Deadline,
    ) -> BackendError {
        let types = commands::types(self.space(), key);
        let Ok(types) = from.run_all(&types, deadline).await else {
            return from.endpoint().foreign_lock(key);
        };
        let types = types.into_iter().map(|name| match name {
            Value::SimpleString(name) => name,
            _ => "value".to_owned(),
        });
        let types: Vec<_> = types.collect();
        from.endpoint().one_is_foreign(key, &types)
    }

    /// It was answered with what Redis does not give.
    pub(super) fn nonsense(&self, from: &Connection) -> Failure {
        Failure {
            cause: Cause::Error(from.endpoint().nonsense()),
            next: Next::Stop,
            applied: Applied::Answered,
        }
    }
}

/// Does it for many of them together, but not for all.
pub(super) async fn in_parts<'r, F: Future>(
    requests: &[&'r Request],
    renew: impl Fn(&'r Request) -> F,
) -> Vec<F::Output> {
    let mut renewed = Vec::with_capacity(requests.len());
    for some in requests.chunks(RENEWED_AT_ONCE) {
        let some = some.iter().map(|&request| renew(request));
        renewed.extend(join_all(some).await);
    }
    renewed
}

/// The answer to a renewal that was sent then.
pub(super) fn read_renewal(answer: &Value, sent_at: Instant) -> Option<Renewed> {
    match answer {
        Value::Int(0) => Some(Renewed::Gone),
        Value::Int(_) => Some(Renewed::Extended {
            sent_at: sent_at.into(),
        }),
        _ => None,
    }
}
