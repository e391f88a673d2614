//! One server, or the slot of a cluster, as one voter of several.
//!
//! A vote is the lock on it, in the keys and by the scripts of a single server. Who
//! waits listens on the lock's own channel.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use redis::{ServerError, Value};

use super::attempt::Attempt;
use super::commands::{self, Patience};
use super::connection::Connection;
use super::connections::{Lane, Link};
use super::errors::{Remedy, remedy};
use super::lost::Lost;
use super::names::Keyspace;
use super::scripts::Form;
use super::server_connections::One;

use super::store::RedisStore;
use super::values::LockValue;
use crate::backend::{BackendError, LockInfo, Mode, Request};
use crate::deadline::{Deadline, Sending};
use crate::quorum::first_token;
use crate::quorum::voter::{Holder, Vote, Voter};
use crate::store::{Applied, Cause, Failure, Next};

/// So many keys are asked for in one command: the server does nothing else
/// meanwhile.
const KEYS_AT_ONCE: usize = 1000;

/// The keys whose channels a connection is subscribed to.
#[derive(Default)]
pub(crate) struct Channels {
    connection: Option<u64>,
    keys: HashSet<Arc<str>>,
}

impl Voter for RedisStore {
    type Lane = Connection;
    type Listening = Channels;

    fn place(&self) -> String {
        self.servers.connector.place.to_string()
    }

    /// Some servers keep it to themselves. A slot has no name but its own.
    async fn identity(&self, deadline: Deadline) -> Option<String> {
        if *self.servers.space() != Keyspace::Server {
            return None;
        }
        let (attempt, identity) = (&mut Attempt::default(), |_| commands::identity());
        let answer = self
            .servers
            .ask("", deadline, attempt, identity)
            .await
            .ok()?;
        match answer.value {
            Value::BulkString(text) => run_id_in(&String::from_utf8_lossy(&text)),
            Value::VerbatimString { text, .. } => run_id_in(&text),
            _ => None,
        }
    }

    fn is_connected(&self) -> bool {
        let here = self.servers.of_one().map(|one| one.connections.here());
        matches!(here, Some(Ok(lane)) if lane.ready().is_some())
    }

    async fn vote(
        &self,
        request: &Request,
        deadline: Deadline,
        attempt: &mut Attempt,
    ) -> Result<Vote, Failure> {
        let mut form = Form::Digest;
        loop {
            let link = self.servers.link(&request.key, deadline).await?;
            let space = self.servers.space();
            let value = commands::value(space, &request.key);
            let commands = match request.mode {
                Mode::Write => {
                    let draw = commands::draw_tokens(space, 1);
                    commands::pipeline([commands::take(space, request), draw, value])
                }
                Mode::Read => {
                    let try_once = Patience::Try;
                    let read = commands::acquire(space, form, request, self.process, try_once, 0);
                    commands::pipeline([read, value])
                }
            };
            let sent_at = Instant::now();
            attempt.in_flight = Some(link.connection.clone());
            let answers = link.connection.run_all(&commands, deadline).await;
            let answers = self.servers.hear(&link, attempt, sent_at, answers)?;
            let mut answers = answers.into_iter();
            let first = answers.next().unwrap_or_default();
            let last = match (request.mode, first) {
                (Mode::Write, Value::Okay) => answers.next().unwrap_or_default(),
                (Mode::Write, Value::Nil) | (Mode::Read, Value::Int(0)) => {
                    let holder = answers.next_back().unwrap_or_default();
                    return self.holder(&link, request, holder);
                }
                (Mode::Read, first) => first,
                (Mode::Write, Value::ServerError(error)) => Value::ServerError(error),
                (Mode::Write, _) => return Err(self.servers.nonsense(&link)),
            };
            return match last {
                Value::Int(last) => self.drawn(&link, last),
                Value::ServerError(error)
                    if remedy(&error) == Remedy::SendScript && form == Form::Digest =>
                {
                    form = Form::Source;
                    continue;
                }
                Value::ServerError(error) => Err(self.no_vote(&link, request, &error)),
                _ => Err(self.servers.nonsense(&link)),
            };
        }
    }

    async fn raise(&self, last: u64, deadline: Deadline) -> Result<(), Failure> {
        let raise = |form| commands::raise_tokens(self.servers.space(), form, last);
        let attempt = &mut Attempt::default();
        let answer = self.servers.ask("", deadline, attempt, raise).await?;
        match answer.value {
            Value::Int(counter) if counter.unsigned_abs() >= last => Ok(()),
            _ => Err(self.servers.nonsense(&answer.link)),
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
        let link = self.servers.link("", deadline).await?;
        let looks = keys
            .chunks(KEYS_AT_ONCE)
            .map(|keys| commands::values(self.servers.space(), keys.iter().map(|key| &**key)));
        let (commands, asked) = (commands::pipeline(looks), Instant::now());
        let answers = link.connection.run_all(&commands, deadline).await;
        let attempt = &mut Attempt::default();
        let answers = self.servers.hear(&link, attempt, asked, answers)?;
        let mut holders = Vec::with_capacity(keys.len());
        for answer in answers {
            match answer {
                Value::Array(some) => holders.extend(some.iter().map(|value| match value {
                    Value::BulkString(value) => LockValue::parse(value).map(holder_of),
                    // It is free, or of another type, which asking shows.
                    _ => None,
                })),
                Value::ServerError(error) => {
                    return Err(self
                        .servers
                        .refused(&link, "", error, deadline, attempt)
                        .await);
                }
                _ => return Err(self.servers.nonsense(&link)),
            }
        }
        Ok(holders)
    }

    async fn listen(
        &self,
        keys: &HashSet<Arc<str>>,
        channels: &mut Channels,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let Some(One { ear, .. }) = self.servers.of_one() else {
            return Ok(());
        };
        if keys.is_empty() && channels.keys.is_empty() {
            return Ok(());
        }
        let connection = ear.connection(deadline).await?;
        if channels.connection != Some(connection.id()) {
            channels.connection = Some(connection.id());
            channels.keys.clear();
        }
        let new: Vec<_> = keys.difference(&channels.keys).cloned().collect();
        let old: Vec<_> = channels.keys.difference(keys).cloned().collect();
        for (keys, listens) in [(&new, true), (&old, false)] {
            for keys in keys.chunks(KEYS_AT_ONCE) {
                self.subscribe(ear, &connection, keys, listens, deadline)
                    .await?;
            }
        }
        channels.keys.clone_from(keys);
        Ok(())
    }

    fn lane(attempt: &Attempt) -> Option<Connection> {
        attempt.in_flight.clone()
    }

    async fn ping(&self, lane: Option<&Connection>, deadline: Deadline) -> Result<(), Failure> {
        let connector = &self.servers.connector;
        if let Some(connection) = lane {
            let answer = connection.run_behind(commands::ping());
            if let Ok(Ok(_)) = connector.clock.bound(deadline, answer).await {
                return Ok(());
            }
            connection.discard();
            return Err(Failure::not_sent());
        }
        let Some(One { lane, .. }) = self.servers.of_one() else {
            return Ok(());
        };
        let pinged = async {
            let connection = lane.connection(deadline).await?;
            let sending = Sending::now(deadline);
            match connection.run(commands::ping(), sending).await {
                Ok(_) => Ok(()),
                Err(lost) => {
                    if !matches!(lost, Lost::TooLate) {
                        lane.discard(&connection);
                    }
                    Err(Failure::not_sent())
                }
            }
        };
        // It may be elsewhere by now.
        pinged.await.inspect_err(|_| connector.is_in_doubt())
    }
}

impl RedisStore {
    /// A counter that has lost what it was when the connection was made would
    /// give old numbers again. A new connection lifts it.
    fn drawn(&self, link: &Link, last: i64) -> Result<Vote, Failure> {
        let last = last.unsigned_abs();
        if first_token(last) > link.connection.token_floor() {
            return Ok(Vote::Yes { last });
        }
        link.connection.discard();
        Err(answered(BackendError::unavailable(format!(
            "{} has lost its data; the next attempt begins above its old tokens",
            link.place()
        ))))
    }

    /// What stands where the lock is.
    fn holder(&self, link: &Link, request: &Request, value: Value) -> Result<Vote, Failure> {
        match value {
            Value::BulkString(value) => match LockValue::parse(&value) {
                Some(value) => Ok(Vote::No(Some(holder_of(value)))),
                None => Err(answered(link.place().foreign_lock(&request.key))),
            },
            Value::Nil => Ok(Vote::No(None)),
            Value::ServerError(error) => Err(self.no_vote(link, request, &error)),
            _ => Err(self.servers.nonsense(link)),
        }
    }

    /// A vote that was given without a number is given back like any other.
    fn no_vote(&self, link: &Link, request: &Request, error: &ServerError) -> Failure {
        let (place, remedy) = (link.place(), remedy(error));
        let connector = link.lane.connector();
        let elsewhere = connector.redirected(error, link.connection.address());
        if elsewhere || remedy == Remedy::Reconnect {
            link.discard();
        }
        answered(match remedy {
            Remedy::Foreign => place.foreign_lock(&request.key),
            Remedy::ForeignCounter => place.foreign_counter(""),
            _ => place.refused(error),
        })
    }

    async fn subscribe(
        &self,
        ear: &Lane,
        connection: &Connection,
        keys: &[Arc<str>],
        listens: bool,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let (space, connector) = (self.servers.space(), ear.connector());
        let channels: Vec<_> = keys.iter().map(|key| space.freed_channel(key)).collect();
        let subscribing = connection.subscribe(&channels, listens, deadline);
        let Err(lost) = subscribing.await else {
            return Ok(());
        };
        tracing::debug!(target: "dlock::store", "{}: {lost:?}", connector.place);
        if let Lost::Broken(error) = lost
            && let Ok(error) = ServerError::try_from(error)
        {
            connector.redirected(&error, connection.address());
        }
        // What it is subscribed to is not known any more.
        ear.discard(connection);
        Err(Failure::not_sent())
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
            let listeners = |_| commands::listeners(space, keys());
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
