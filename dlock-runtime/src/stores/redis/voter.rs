//! One server, or the slot of a cluster, as one voter of several.
//!
//! A vote is the lock on it, in the keys and by the scripts of a single server. Who
//! waits listens on the lock's own channel.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::channels::Channels;
use super::cluster::masters;
use super::commands;
use super::config::Config;
use super::connection::Connection;
use super::errors::{RetryPolicy, classify};
use super::locate::Locator;
use super::names::Keyspace;
use super::scripts;
use super::servers::Attempt;
use super::store::RedisStore;
use super::values::LockValue;
use crate::backend::{BackendError, LockInfo, Mode, Request};
use crate::deadline::Deadline;
use crate::quorum::first_token;
use crate::quorum::voter::{Holder, Vote, Voter};
use crate::store::{Applied, Cause, Failure, Next};

impl Voter for RedisStore {
    type Lane = Connection;
    type Listening = Channels;

    async fn electorate(
        voters: Vec<Config>,
        request_timeout: Duration,
    ) -> Result<Vec<Config>, BackendError> {
        match &voters[..] {
            [cluster] if matches!(cluster.locator, Locator::Cluster(_)) => {
                masters::elect(cluster, request_timeout).await
            }
            _ => Ok(voters),
        }
    }

    fn place(&self) -> String {
        self.servers.connector.endpoint.to_string()
    }

    /// Some servers keep it to themselves. A slot has no name but its own.
    async fn identity(&self, deadline: Deadline) -> Option<String> {
        if *self.servers.space() != Keyspace::Server {
            return None;
        }
        let (servers, attempt) = (&self.servers, &mut Attempt::default());
        let asked = servers.ask("", deadline, attempt, commands::identity);
        let answer = asked.await.ok()?;
        match answer.value {
            Value::BulkString(text) => run_id_in(&String::from_utf8_lossy(&text)),
            Value::VerbatimString { text, .. } => run_id_in(&text),
            _ => None,
        }
    }

    fn is_connected(&self) -> bool {
        let here = self.servers.one().map(|one| one.here());
        matches!(here, Some(Ok(here)) if here.ready().is_some())
    }

    async fn vote(
        &self,
        request: &Request,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Vote, Failure> {
        self.is_replaced().map_err(Failure::refused)?;
        let (servers, space) = (&self.servers, self.servers.space());
        let from = servers.connection(&request.key, deadline).await?;
        let mut in_full = false;
        loop {
            let value = commands::value(space, &request.key);
            let commands = match request.mode {
                Mode::Write => {
                    let draw = commands::draw_tokens(space, 1);
                    commands::pipeline([commands::take(space, request), draw, value])
                }
                Mode::Read => {
                    let read = commands::acquire(space, request, self.process, false, 0);
                    commands::pipeline([scripts::in_form(read, in_full), value])
                }
            };
            let (answers, _) = servers.ask_all(&from, &commands, deadline, attempt).await?;
            let mut answers = answers.into_iter();
            let first = answers.next().unwrap_or_default();
            let last = match (request.mode, first) {
                (Mode::Write, Value::Okay) => answers.next().unwrap_or_default(),
                (Mode::Write, Value::Nil) | (Mode::Read, Value::Int(0)) => {
                    let holder = answers.next_back().unwrap_or_default();
                    return self.holder(&from, request, holder);
                }
                (Mode::Read, first) => first,
                (Mode::Write, Value::ServerError(error)) => Value::ServerError(error),
                (Mode::Write, _) => return Err(servers.nonsense(&from)),
            };
            return match last {
                Value::Int(last) => self.drawn(&from, last),
                Value::ServerError(error)
                    if classify(&error) == RetryPolicy::SendScript && !in_full =>
                {
                    in_full = true;
                    continue;
                }
                Value::ServerError(error) => {
                    let key = &request.key;
                    let refused = servers.refused(&from, key, error, deadline, attempt);
                    // A vote that was given without a number is given back like any other.
                    Err(Failure {
                        applied: Applied::Answered,
                        ..refused.await
                    })
                }
                _ => Err(servers.nonsense(&from)),
            };
        }
    }

    async fn raise(&self, last: u64, deadline: Deadline) -> Result<(), Failure> {
        let servers = &self.servers;
        let raise = || commands::raise_tokens(servers.space(), last);
        let attempt = &mut Attempt::default();
        let answer = servers.ask("", deadline, attempt, raise).await?;
        match answer.value {
            Value::Int(counter) if counter.unsigned_abs() >= last => Ok(()),
            _ => Err(servers.nonsense(&answer.from)),
        }
    }

    fn given(&self, last: u64) {
        let highest = &self.servers.connector.highest_token;
        highest.fetch_max(last, Ordering::Relaxed);
    }

    async fn values(
        &self,
        keys: &[Arc<str>],
        deadline: Deadline,
    ) -> Result<Vec<Option<Holder>>, Failure> {
        let values = self.servers.values(keys, None, deadline).await?;
        let holders = values.iter().map(|value| match value {
            Value::BulkString(value) => LockValue::parse(value).map(holder_of),
            // It is free, or of another type, which asking shows.
            _ => None,
        });
        Ok(holders.collect())
    }

    async fn listen(
        &self,
        keys: &HashSet<Arc<str>>,
        channels: &mut Channels,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let Some(one) = self.servers.one() else {
            return Ok(());
        };
        let space = self.servers.space();
        let channel_of = |key: &str| space.freed_channel(key);
        let followed = channels.follow(one.of_manager(), keys, channel_of, deadline);
        followed.await.map_err(|unheard| {
            if let Some((error, from)) = unheard {
                self.servers.connector.locator.redirected(&error, &from);
            }
            Failure::not_sent()
        })
    }

    fn lane(attempt: &Attempt) -> Option<Connection> {
        attempt.in_flight.clone()
    }

    async fn ping(&self, lane: Option<&Connection>, deadline: Deadline) -> Result<(), Failure> {
        let connector = &self.servers.connector;
        let pinged = async {
            let connection = match lane {
                Some(lane) => lane.clone(),
                None => self.servers.connection("", deadline).await?,
            };
            let answer = connection.run_behind(commands::ping());
            let answer = connector.time.bound(deadline, answer).await;
            if let Ok(Ok(_)) = answer {
                return Ok(());
            }
            // Its own connection may be slow.
            if lane.is_some() || answer.is_ok() {
                connection.discard();
            }
            Err(Failure::not_sent())
        };
        // It may be elsewhere by now.
        pinged
            .await
            .inspect_err(|_| connector.locator.is_in_doubt())
    }
}

impl RedisStore {
    /// A counter that has lost what it was when the connection was made would
    /// give old numbers again. A new connection lifts it.
    fn drawn(&self, from: &Connection, last: i64) -> Result<Vote, Failure> {
        let last = last.unsigned_abs();
        if first_token(last) > from.token_floor() {
            return Ok(Vote::Yes { last });
        }
        from.discard();
        Err(answered(BackendError::unavailable(format!(
            "{} has lost its data; the next attempt begins above its old tokens",
            from.endpoint()
        ))))
    }

    /// What stands where the lock is.
    fn holder(&self, from: &Connection, request: &Request, value: Value) -> Result<Vote, Failure> {
        match value {
            Value::BulkString(value) => match LockValue::parse(&value) {
                Some(value) => Ok(Vote::No(Some(holder_of(value)))),
                None => Err(answered(from.endpoint().foreign_lock(&request.key))),
            },
            Value::Nil => Ok(Vote::No(None)),
            Value::ServerError(error) => Err(answered(from.endpoint().refused(&error))),
            _ => Err(self.servers.nonsense(from)),
        }
    }

    /// Counts the processes that listen for the release of each of these locks, as
    /// far as the server says.
    pub(super) async fn count_listeners(&self, locks: &mut [LockInfo], deadline: Deadline) {
        if locks.is_empty() {
            return;
        }
        let (space, attempt) = (self.servers.space(), &mut Attempt::default());
        let counted = {
            let keys = || locks.iter().map(|lock| &*lock.key);
            let listeners = || commands::listeners(space, keys());
            self.servers.ask("", deadline, attempt, listeners).await
        };
        let Ok(Value::Array(counts)) = counted.map(|answer| answer.value) else {
            return;
        };
        // Channels and counts in turn.
        let counts = counts.into_iter().skip(1).step_by(2);
        for (lock, count) in locks.iter_mut().zip(counts) {
            if let Value::Int(count) = count {
                lock.waiters = usize::try_from(count).unwrap_or(0);
            }
        }
    }
}

/// It has answered, and there may be a vote.
fn answered(error: BackendError) -> Failure {
    Failure {
        cause: Cause::Error(error),
        next: Next::Pause,
        applied: Applied::Answered,
    }
}

fn holder_of(value: LockValue) -> Holder {
    Holder {
        mode: value.mode,
        owner: value.owner,
    }
}

fn run_id_in(info: &str) -> Option<String> {
    let mut lines = info.lines();
    let id = lines.find_map(|line| line.strip_prefix("run_id:"))?;
    Some(id.trim().to_owned())
}
