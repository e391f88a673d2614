//! One operation: its deadline, its connection, and what is done when no
//! answer comes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ServerError, Value};

use super::cluster::{Topology, Way};
use super::commands;
use super::connection::Connection;
use super::connections::{Lane, NoConnection};
use super::connector::Connector;
use super::errors::{Place, Remedy, remedy};
use super::lost::Lost;
use super::names::Keyspace;
use super::scripts::Form;
use super::server_connections::Side;
use crate::backend::BackendError;
use crate::backend::clock::{Backoff, Deadline, Sending};

/// What seldom happens, boxed: a call need not make room for it.
pub(super) type Rare<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why an attempt came to nothing.
enum Failure {
    Error(BackendError),
    /// No answer came. For how long tells the operation, not the attempt.
    Silence,
}

/// Sends the commands of one operation, until there is an answer or its time
/// has passed.
pub(super) struct Call<'a> {
    connector: &'a Connector,
    path: Path<'a>,
    deadline: Deadline,
    backoff: Backoff,
    /// Since when there is no answer.
    started: Instant,
    /// Why the last attempt came to nothing.
    failure: Option<Failure>,
    /// What is asked first may wait for what another task asks next.
    followed: bool,
}

/// Where the commands go.
enum Path<'a> {
    Lane(Arc<Lane>),
    /// To the node that has this slot, of which there is one connection. Until
    /// another has the slot for good, only a way leads there.
    Voter(Arc<Lane>, &'a Topology, u16),
    /// In a cluster it is found anew for each attempt. The lane is that of the
    /// last one.
    Way(Way<'a>, Option<Arc<Lane>>),
}

impl<'a> Call<'a> {
    pub(super) fn new(connector: &'a Connector, lane: Arc<Lane>) -> Self {
        Self::along(connector, Path::Lane(lane))
    }

    /// To the node of a cluster that has a slot, over its own connection.
    pub(super) fn to_voter(
        connector: &'a Connector,
        lane: Arc<Lane>,
        (topology, slot): (&'a Topology, u16),
    ) -> Self {
        Self::along(connector, Path::Voter(lane, topology, slot))
    }

    /// To whichever node of a cluster has the slot.
    pub(super) fn on_way(connector: &'a Connector, way: Way<'a>) -> Self {
        Self::along(connector, Path::Way(way, None))
    }

    fn along(connector: &'a Connector, path: Path<'a>) -> Self {
        let started = Instant::now();
        Self {
            connector,
            path,
            deadline: Deadline::from(started, connector.settings.request_timeout),
            backoff: new_backoff(),
            started,
            failure: None,
            followed: false,
        }
    }

    /// Begins anew, with another deadline. `heard` is when the server was last
    /// known to answer.
    pub(super) fn restart(&mut self, heard: Instant, deadline: Deadline) {
        self.deadline = deadline;
        self.started = heard;
        self.backoff = new_backoff();
        self.failure = None;
    }

    /// The connection for the next attempt; an error if the call's time has
    /// passed or there cannot be one.
    pub(super) async fn connection(&mut self) -> Result<Connection, BackendError> {
        if self.failure.is_some() && self.deadline.has_passed() {
            return Err(self.give_up());
        }
        let connection = match &mut self.path {
            Path::Lane(lane) | Path::Voter(lane, ..) => lane.connection(self.deadline).await,
            Path::Way(way, last) => match way.connection(self.deadline).await {
                Ok((lane, connection)) => {
                    *last = Some(lane);
                    Ok(connection)
                }
                Err(none) => Err(none),
            },
        };
        match connection {
            Ok(connection) => Ok(connection),
            Err(NoConnection::Failed(error)) => Err(error),
            // An earlier attempt may know more.
            Err(NoConnection::TooLate) => Err(self.give_up()),
        }
    }

    /// Sends one command over the connection of this attempt.
    pub(super) async fn send(
        &self,
        connection: &Connection,
        command: Cmd,
        sending: Sending,
    ) -> Result<Value, Lost> {
        if self.is_asking() {
            // The one right behind the other.
            let commands = commands::pipeline([commands::asking(), command]);
            let answers = Box::pin(connection.run_all(&commands, sending.deadline)).await?;
            return Ok(answers.into_iter().next_back().unwrap_or_default());
        }
        connection.run(command, sending).await
    }

    /// The same with several commands, which go out together.
    async fn send_all(
        &self,
        connection: &Connection,
        commands: impl Iterator<Item = Cmd>,
    ) -> Result<Vec<Value>, Lost> {
        if self.is_asking() {
            let commands = commands.flat_map(|command| [commands::asking(), command]);
            let commands = commands::pipeline(commands);
            let answers = Box::pin(connection.run_all(&commands, self.deadline)).await?;
            return Ok(answers.into_iter().skip(1).step_by(2).collect());
        }
        let commands = commands::pipeline(commands);
        connection.run_all(&commands, self.deadline).await
    }

    fn is_asking(&self) -> bool {
        matches!(&self.path, Path::Way(way, _) if way.is_asking())
    }

    fn lane(&self) -> Option<&Arc<Lane>> {
        match &self.path {
            Path::Lane(lane) | Path::Voter(lane, ..) => Some(lane),
            Path::Way(_, last) => last.as_ref(),
        }
    }

    /// The server, as far as it is known.
    fn place(&self) -> &Place {
        let connector = self.lane().map(|lane| lane.connector());
        &connector
            .map_or(self.connector, |connector| connector)
            .place
    }

    fn space(&self) -> &Keyspace {
        &self.connector.settings.space
    }

    fn discard(&self, connection: &Connection) {
        if let Some(lane) = self.lane() {
            lane.discard(connection);
        }
        if let Path::Way(way, _) = &self.path {
            way.is_in_doubt();
        }
    }

    /// Takes note if no answer came: a connection that is broken or on which
    /// nothing is heard is replaced.
    pub(super) fn hear<T>(
        &mut self,
        connection: &Connection,
        answer: Result<T, Lost>,
    ) -> Option<T> {
        match answer {
            Ok(answer) => {
                if let Path::Way(..) = &self.path {
                    connection.speaks();
                }
                Some(answer)
            }
            Err(lost) => {
                match (&lost, &self.path) {
                    // A renewal has less time than an answer may take, so that a
                    // dead node would never be found silent by renewals alone.
                    (Lost::TooLate, Path::Way(way, _)) if !connection.is_silent() => {
                        way.is_in_doubt();
                    }
                    (Lost::TooLate, Path::Lane(_)) => {}
                    _ => self.discard(connection),
                }
                self.failure = Some(match lost {
                    Lost::Broken(error) => Failure::Error(self.place().unreachable(error)),
                    Lost::Silent | Lost::TooLate => Failure::Silence,
                });
                None
            }
        }
    }

    /// Another task of this runtime is about to ask the same server.
    pub(super) fn is_followed(&mut self) {
        self.followed = true;
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// For a command that is sent now.
    pub(super) fn sending(&self) -> Sending {
        Sending::now(self.deadline)
    }

    /// An error answer: `Ok` to try once more, after whatever pause that needs.
    pub(super) fn refused<'c>(
        &'c mut self,
        connection: &'c Connection,
        key: &'c str,
        error: ServerError,
    ) -> Rare<'c, Result<(), BackendError>> {
        Box::pin(async move {
            match remedy(&error) {
                Remedy::SendScript => return Ok(()),
                Remedy::Retry => {}
                Remedy::Reconnect => self.discard(connection),
                Remedy::Foreign => return Err(self.foreign(key).await),
                Remedy::ForeignCounter => return Err(self.place().foreign_counter(key)),
                Remedy::Moved | Remedy::Ask | Remedy::Cluster => {
                    let refused = self.place().refused(&error);
                    if !self.redirected(connection, &error) {
                        return Err(refused);
                    }
                    self.failure = Some(Failure::Error(refused));
                    if let Path::Way(way, _) = &mut self.path
                        && way.may_go_on()
                    {
                        return Ok(());
                    }
                    return self.pause().await;
                }
                Remedy::GiveUp => return Err(self.place().refused(&error)),
            }
            self.failure = Some(Failure::Error(self.place().refused(&error)));
            self.pause().await
        })
    }

    /// Whether the next attempt may go elsewhere.
    fn redirected(&mut self, connection: &Connection, error: &ServerError) -> bool {
        if let Path::Voter(_, topology, slot) = &self.path
            && remedy(error) == Remedy::Ask
        {
            // No connection of its own leads there yet.
            let mut way = Way::new(topology, *slot, Side::Caller);
            way.redirected(error, connection.address());
            self.path = Path::Way(way, None);
            return true;
        }
        match &mut self.path {
            Path::Way(way, _) => {
                way.redirected(error, connection.address());
                true
            }
            Path::Lane(lane) | Path::Voter(lane, ..) => {
                let redirected = self.connector.redirected(error, connection.address());
                if redirected {
                    lane.discard(connection);
                }
                redirected
            }
        }
    }

    /// Waits a little before the next attempt, or fails if there is no time.
    pub(super) fn pause(&mut self) -> Rare<'_, Result<(), BackendError>> {
        Box::pin(async move {
            let pause = self.backoff.pause();
            if self.deadline.remaining() <= pause {
                return Err(self.give_up());
            }
            self.connector.clock.sleep(Deadline::after(pause)).await;
            Ok(())
        })
    }

    /// Sends one command until it is answered. It must do no harm when it is
    /// run twice. `build` makes it in the form that the server can run.
    pub(super) async fn ask(
        &mut self,
        key: &str,
        build: impl Fn(Form) -> Cmd,
    ) -> Result<Answer, BackendError> {
        let mut form = Form::Digest;
        let mut repeated = false;
        loop {
            let connection = self.connection().await?;
            let sending = self.sending();
            let answer = if std::mem::take(&mut self.followed) {
                connection.run_with_the_next(build(form), sending).await
            } else {
                self.send(&connection, build(form), sending).await
            };
            match self.hear(&connection, answer) {
                None => {
                    repeated = true;
                    self.pause().await?;
                }
                Some(Value::ServerError(error)) => {
                    if remedy(&error) == Remedy::SendScript {
                        form = Form::Source;
                    }
                    self.refused(&connection, key, error).await?;
                }
                Some(value) => {
                    return Ok(Answer {
                        value,
                        behind: None,
                        sent_at: sending.at,
                        repeated,
                    });
                }
            }
        }
    }

    /// Sends `count` commands together, and those again that were not answered.
    /// An answer for each, in order. Each time, `behind` goes out behind them.
    pub(super) async fn ask_all<'k>(
        &mut self,
        count: usize,
        key: impl Fn(usize) -> &'k str,
        build: impl Fn(usize, Form) -> Cmd,
        behind: Option<&Cmd>,
    ) -> Vec<Result<Answer, BackendError>> {
        let mut answers: Vec<Option<Result<Answer, BackendError>>> = Vec::new();
        answers.resize_with(count, || None);
        let mut form = Form::Digest;
        let mut repeated = false;
        let failure = loop {
            let open: Vec<_> = (0..count)
                .filter(|&index| answers[index].is_none())
                .collect();
            if open.is_empty() {
                break None;
            }
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(error) => break Some(error),
            };
            let sent_at = Instant::now();
            let commands = open.iter().map(|&index| build(index, form));
            let commands = commands.chain(behind.cloned());
            let values = self.send_all(&connection, commands).await;
            let paused = match self.hear(&connection, values) {
                None => {
                    repeated = true;
                    self.pause().await
                }
                Some(mut values) => {
                    let behind = behind.and_then(|_| values.pop());
                    let mut again = None;
                    for (index, value) in open.into_iter().zip(values) {
                        let Value::ServerError(error) = value else {
                            answers[index] = Some(Ok(Answer {
                                value,
                                behind: behind.clone(),
                                sent_at,
                                repeated,
                            }));
                            continue;
                        };
                        match remedy(&error) {
                            Remedy::SendScript
                            | Remedy::Retry
                            | Remedy::Reconnect
                            | Remedy::Moved
                            | Remedy::Ask
                            | Remedy::Cluster => {
                                // What has gone ahead cannot be had here.
                                let ahead = |error| remedy(error) == Remedy::Ask;
                                if !again.as_ref().is_some_and(ahead) {
                                    again = Some(error);
                                }
                            }
                            Remedy::Foreign => {
                                answers[index] = Some(Err(self.foreign(key(index)).await));
                            }
                            Remedy::ForeignCounter | Remedy::GiveUp => {
                                answers[index] = Some(Err(self.place().refused(&error)));
                            }
                        }
                    }
                    match again {
                        None => Ok(()),
                        Some(error) => {
                            if remedy(&error) == Remedy::SendScript {
                                form = Form::Source;
                            }
                            self.refused(&connection, "", error).await
                        }
                    }
                }
            };
            if let Err(error) = paused {
                break Some(error);
            }
        };
        answers
            .into_iter()
            .map(|answer| {
                answer.unwrap_or_else(|| {
                    Err(failure.clone().unwrap_or_else(|| self.place().nonsense()))
                })
            })
            .collect()
    }

    pub(super) fn nonsense(&self) -> BackendError {
        self.place().nonsense()
    }

    /// Why there is no answer.
    pub(super) fn give_up(&mut self) -> BackendError {
        match self.failure.take() {
            Some(Failure::Error(error)) => error,
            Some(Failure::Silence) | None => self.too_late(),
        }
    }

    /// There was none in time.
    pub(super) fn too_late(&self) -> BackendError {
        self.place().silent(self.started.elapsed())
    }

    /// Says which of the keys is not dlock's.
    pub(super) async fn foreign(&mut self, key: &str) -> BackendError {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        let types = connection
            .run_all(&commands::types(self.space(), key), self.deadline)
            .await;
        let Some(types) = self.hear(&connection, types) else {
            return self.give_up();
        };
        let types: Vec<_> = types
            .into_iter()
            .map(|name| match name {
                Value::SimpleString(name) => name,
                _ => "value".to_owned(),
            })
            .collect();
        self.place().one_is_foreign(key, &types)
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(10), Duration::from_millis(250))
}

/// An answer to [`Call::ask`].
pub(super) struct Answer {
    pub(super) value: Value,
    /// The answer to what was sent right behind.
    pub(super) behind: Option<Value>,
    /// When the command was sent that was answered.
    pub(super) sent_at: Instant,
    /// The command was sent before, and that answer was lost.
    pub(super) repeated: bool,
}
