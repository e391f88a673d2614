//! One command and its answer: which connection it is sent over, and what an error or a missing
//! answer means.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use redis::{Cmd, ServerError, Value};

use super::batcher::{How, Lost};
use super::commands;
use super::config::Electorate;
use super::connection::Connection;
use super::connections::{Connections, RuntimeConnection};
use super::connector::Connector;
use super::errors::{RetryPolicy, classify, lacks_replicas, within_script};
use super::names::{Keyspace, Part};
use super::scan::Cursor;
use super::scripts;
use super::subscriptions::Subscriptions;
use super::timer::Sending;
use super::topology::Topology;
use super::values::Process;
use crate::apart::{apart, outlined};
use crate::backend::{BackendError, LockInfo};
use crate::deadline::Deadline;
use crate::engine::events::Events;
use crate::store::{Applied, Cause, Failure, Next};
use crate::stores::address::Address;
use crate::token::TOKENS_PER_GRANT;

/// The most keys that are read in one command, since the server does nothing else meanwhile.
const KEYS_AT_ONCE: usize = 1000;

/// One server, the master that sentinels name, a cluster, or one slot of a cluster, with the
/// connections of all runtimes.
pub(crate) struct RedisStore {
    /// What all servers have in common, and how to connect if there is only one.
    pub(super) connector: Arc<Connector>,
    pub(super) route: Route,
    /// With `replicas=N`: the connections for commands that wait for replicas.
    pub(super) confirming: Option<Arc<Connections>>,
    pub(super) process: Process,
    pub(super) events: Events,
    /// Whether it is one voter of a quorum.
    pub(super) votes: bool,
    /// The voters of a cluster, if this is a slot that votes.
    pub(super) electorate: Option<Arc<dyn Electorate>>,
    /// The subscriptions, if each lock has a channel of its own.
    pub(super) subscriptions: Option<Arc<Subscriptions>>,
}

/// Which server has a lock.
pub(super) enum Route {
    /// There is one server. It may be the node of a cluster that has the voting slot.
    One(Arc<Connections>, Option<Arc<Topology>>),
    /// The node of the lock's slot.
    BySlot(Arc<Topology>),
}

/// What an operation remembers from attempt to attempt.
#[derive(Default)]
pub(crate) struct Notes {
    /// The connection over which commands are in flight.
    pub(super) in_flight: Option<Connection>,
    /// The plain command that takes a free lock was refused: its server lacks replicas.
    pub(super) lacks_replicas: bool,
    pub(super) listing: Option<Box<Listing>>,
}

/// The progress of a list.
pub(super) struct Listing {
    /// Connections to the servers that are still to be scanned.
    pub(super) servers: VecDeque<Arc<RuntimeConnection>>,
    pub(super) cursor: Cursor,
    /// The keys found so far. A set, since a scan may return a key twice, and so may two nodes
    /// when its slot moves.
    pub(super) found: BTreeSet<String>,
    /// The keys that have not been looked at yet.
    pub(super) ahead: VecDeque<String>,
    pub(super) locks: Vec<LockInfo>,
}

/// Makes a command, which may have to be sent again in another way.
pub(super) trait Build: Sync {
    fn build(&self) -> Cmd;

    /// The command for the node that is about to get the slot, where not all keys of the lock may
    /// be yet. A key that it makes there keeps the one of that name from coming.
    fn ahead(&self) -> Cmd {
        self.build()
    }
}

impl<F: Fn() -> Cmd + Sync> Build for F {
    fn build(&self) -> Cmd {
        self()
    }
}

/// An answer that is on its way. Boxed: the code of an `async fn` is in the binary once for each
/// module that awaits it, and nearly all modules here await answers.
pub(super) type Answering<'a, T = Answer> = BoxFuture<'a, Result<T, Failure>>;

/// The answer of a server.
pub(super) struct Answer {
    pub(super) value: Value,
    /// The answer to the second command that is sent behind some commands, see [`How`].
    pub(super) behind: Value,
    /// The connection over which it came.
    pub(super) from: Connection,
    /// When the command was sent.
    pub(super) sent_at: Instant,
}

impl RedisStore {
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

    /// The node of a cluster that has a lock. `None`: it is not known, or one server has all locks.
    pub(super) fn node_of(&self, key: &str) -> Option<Arc<Address>> {
        match &self.route {
            Route::One(..) => None,
            Route::BySlot(topology) => topology.map.owner(self.space().slot(key)),
        }
    }

    /// How many locks one command may look at. In a cluster, they are in different slots.
    pub(super) fn keys_at_once(&self) -> usize {
        match self.route {
            Route::One(..) => KEYS_AT_ONCE,
            Route::BySlot(_) => 1,
        }
    }

    /// In a cluster, has the map of its slots read again soon: it may be wrong.
    fn refresh_map_soon(&self) {
        if let Some(topology) = self.topology() {
            topology.map.refresh_soon();
        }
    }

    /// The connection of the calling runtime to the server that has a lock.
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

    /// Sends one command to the server of a lock. The command must leave nothing there that has
    /// to be given back if the caller leaves.
    pub(super) fn ask<'a>(
        &'a self,
        key: &'a str,
        deadline: Deadline,
        build: &'a dyn Build,
    ) -> Answering<'a> {
        Box::pin(async move {
            let notes = &mut Notes::default();
            self.exchange(key, How::Plain, deadline, notes, build).await
        })
    }

    /// Sends one command to the server of a lock, alone or together with others.
    pub(super) fn exchange<'a>(
        &'a self,
        key: &'a str,
        how: How,
        deadline: Deadline,
        notes: &'a mut Notes,
        build: &'a dyn Build,
    ) -> Answering<'a> {
        Box::pin(async move {
            let from = match &self.confirming {
                // There is only one such connection for the whole process.
                Some(one) if how == How::Confirmed => one.of_manager().connection(deadline).await?,
                _ => self.connection(key, deadline).await?,
            };
            let sent = self.send(from, build.build(), how, deadline, notes);
            let answer = outlined(sent).await?;
            if let Value::ServerError(_) = answer.value {
                return apart(self.follow(key, how, deadline, answer, notes, build)).await;
            }
            Ok(answer)
        })
    }

    /// Sends a command and returns the answer, which may be an error of the server.
    async fn send(
        &self,
        from: Connection,
        command: Cmd,
        how: How,
        deadline: Deadline,
        notes: &mut Notes,
    ) -> Result<Answer, Failure> {
        let at = Sending::now(deadline);
        notes.in_flight = Some(from.clone());
        let answers = from.run(command, how, at).await;
        let [value, behind] = self.hear(&from, notes, at.at, answers)?;
        Ok(Answer {
            value,
            behind,
            from,
            sent_at: at.at,
        })
    }

    /// Handles an error answer. A script that the server does not know is sent in full; if the
    /// keys are already at the node that is about to get the slot, the command is sent there.
    /// Neither repeats the command, since it was not run.
    async fn follow(
        &self,
        key: &str,
        how: How,
        deadline: Deadline,
        mut answer: Answer,
        notes: &mut Notes,
        build: &dyn Build,
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
                None => {
                    notes.lacks_replicas = how == How::Take && lacks_replicas(&error);
                    return Err(self.refused(&from, key, error, deadline, notes).await);
                }
            }
            let command = match ahead {
                true => build.ahead(),
                false => build.build(),
            };
            let command = match in_full {
                true => scripts::in_full(&command),
                false => command,
            };
            answer = if ahead {
                // `ASKING` must be directly before the command.
                let commands = commands::pipeline([commands::asking(), command]);
                let sending = Sending::now(deadline);
                notes.in_flight = Some(from.clone());
                let answers = from.run_all(&commands, sending).await;
                let mut answers = self.hear(&from, notes, sending.at, answers)?;
                Answer {
                    value: answers.pop().unwrap_or_default(),
                    behind: Value::Nil,
                    from,
                    sent_at: sending.at,
                }
            } else {
                outlined(self.send(from, command, how, deadline, notes)).await?
            };
        }
        Ok(answer)
    }

    /// Sends one command over this connection, even if its keys may have moved.
    pub(super) fn ask_over<'a>(
        &'a self,
        to: &'a Connection,
        key: &'a str,
        command: Cmd,
        deadline: Deadline,
    ) -> Answering<'a, Value> {
        Box::pin(async move {
            let notes = &mut Notes::default();
            let answer = self.send(to.clone(), command, How::Plain, deadline, notes);
            match outlined(answer).await?.value {
                Value::ServerError(error) => {
                    Err(self.refused(to, key, error, deadline, notes).await)
                }
                value => Ok(value),
            }
        })
    }

    /// Checks the last token number that was drawn for a lock. A counter that is lower than when
    /// the connection was opened has lost data, and would give old numbers again. A new
    /// connection raises it.
    pub(super) fn drawn(&self, from: &Connection, key: &str, last: i64) -> Result<u64, Failure> {
        let last = match scripts::number(last) {
            Some(last) => last,
            // Somebody may have set the counter below zero, and a new connection raises it.
            None if last < 0 && from.token_floor() > 0 => 0,
            None => {
                let foreign = from.endpoint().foreign_counter(key);
                return Err(Failure::refused(foreign).with(Applied::Answered));
            }
        };
        if last.saturating_sub(TOKENS_PER_GRANT - 1) > from.token_floor() {
            return Ok(last);
        }
        from.discard();
        let lost = BackendError::unavailable(format!(
            "{} has lost its data; the next attempt begins above its old tokens",
            from.endpoint()
        ));
        Err(Failure::refused(lost).with(Applied::Answered))
    }

    /// Notes the outcome of a command: after an answer, nothing is in flight any more. A
    /// connection that is broken or silent is replaced.
    fn hear<T>(
        &self,
        from: &Connection,
        notes: &mut Notes,
        sent_at: Instant,
        answer: Result<T, Lost>,
    ) -> Result<T, Failure> {
        let lost = match answer {
            Ok(answer) => {
                notes.in_flight = None;
                return Ok(answer);
            }
            Err(lost) => lost,
        };
        self.refresh_map_soon();
        let applied = if let Lost::TooLate = lost {
            Applied::OnItsWay
        } else {
            from.discard();
            notes.in_flight = None;
            Applied::Unknown { sent_at }
        };
        let cause = match lost {
            Lost::Broken(error) => Cause::Error(from.endpoint().unreachable(error)),
            Lost::Silent | Lost::TooLate => Cause::Silence,
        };
        Err(Failure::new(cause, Next::Pause, applied))
    }

    /// Turns an error answer into a failure. What a script did before it failed is not undone.
    pub(super) fn refused<'a>(
        &'a self,
        from: &'a Connection,
        key: &'a str,
        error: ServerError,
        deadline: Deadline,
        notes: &'a mut Notes,
    ) -> BoxFuture<'a, Failure> {
        Box::pin(async move {
            use RetryPolicy::{Ask, Cluster, Foreign, ForeignCounter, Moved, Reconnect, Retry};
            let (endpoint, policy) = (from.endpoint(), classify(&error));
            let cause = match policy {
                Foreign => {
                    // If the caller leaves meanwhile, the script may have left something.
                    notes.in_flight = Some(from.clone());
                    let foreign = self.foreign(from, key, Part::Lock, deadline).await;
                    notes.in_flight = None;
                    foreign
                }
                ForeignCounter => {
                    notes.in_flight = Some(from.clone());
                    let foreign = self.no_number(from, key, deadline).await;
                    notes.in_flight = None;
                    foreign
                }
                _ => endpoint.refused(&error),
            };
            let next = match policy {
                Retry => Next::Pause,
                Reconnect => {
                    from.discard();
                    self.refresh_map_soon();
                    Next::Pause
                }
                Moved | Ask | Cluster => self.redirected(from, &error, policy),
                _ => Next::Stop,
            };
            let applied = match policy {
                Moved | Ask => Applied::No,
                // These come before a script has written anything: a server refuses nothing more to
                // one that has (`scriptVerifyWriteCommandAllow` in script.c of Redis 7, and
                // `lua_write_dirty` in scripting.c before).
                Retry | Reconnect => Applied::No,
                Cluster if !within_script(&error) => Applied::No,
                _ => Applied::Answered,
            };
            Failure::new(Cause::Error(cause), next, applied)
        })
    }

    /// Another node has the slot of a lock, or no node has it.
    fn redirected(&self, from: &Connection, error: &ServerError, policy: RetryPolicy) -> Next {
        match &self.route {
            // A single server has no other node to ask.
            Route::One(_, None) => return Next::Stop,
            // The next connection leads to the node that has the slot.
            Route::One(_, Some(_)) => {
                if self.connector.locator.redirected(error, from.address()) {
                    from.discard();
                }
            }
            Route::BySlot(topology) => {
                topology.map.redirected(error, from.address());
                if policy == RetryPolicy::Moved {
                    return Next::Now;
                }
            }
        }
        Next::Pause
    }

    /// The error for a value that is not a number or would overflow: the token counter, or the
    /// end of a reader's lease.
    async fn no_number(&self, from: &Connection, key: &str, deadline: Deadline) -> BackendError {
        let endpoint = from.endpoint();
        let counter = commands::counter(self.space(), key);
        let counter = from.run_all(&counter, Sending::now(deadline)).await;
        let counter = counter.ok().and_then(|mut answers| answers.pop());
        let counter = counter.and_then(|value| redis::from_redis_value::<i64>(value).ok());
        match counter.and_then(scripts::number) {
            Some(_) => endpoint.foreign(&self.space().readers(key), "number"),
            None => endpoint.foreign_counter(key),
        }
    }

    /// The error that names the key that is not dlock's. If all types are right, the value of the
    /// key `value` is foreign.
    pub(super) fn foreign<'a>(
        &'a self,
        from: &'a Connection,
        key: &'a str,
        value: Part,
        deadline: Deadline,
    ) -> BoxFuture<'a, BackendError> {
        Box::pin(async move {
            let types = commands::types(self.space(), key);
            let Ok(types) = from.run_all(&types, Sending::now(deadline)).await else {
                return from.endpoint().some_are_foreign(key);
            };
            let types = types.into_iter().map(|name| match name {
                Value::SimpleString(name) => name,
                _ => "value".to_owned(),
            });
            let types: Vec<_> = types.collect();
            from.endpoint().one_is_foreign(key, &types, value)
        })
    }
}

/// The failure for an answer that Redis never gives.
pub(super) fn unexpected_answer(from: &Connection) -> Failure {
    Failure::stop(from.endpoint().unexpected_answer()).with(Applied::Answered)
}
