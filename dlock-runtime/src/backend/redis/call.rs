//! One operation: its deadline, its connection, and what is done when no
//! answer comes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ServerError, Value};

use super::clock::{Backoff, Deadline, Sending};
use super::commands;
use super::connection::{Connection, Lost};
use super::connections::{Lane, NoConnection};
use super::connector::Connector;
use super::errors::{Remedy, remedy};
use super::scripts::Form;
use crate::backend::BackendError;

/// What seldom happens, boxed: a call need not make room for it.
pub(super) type Rare<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sends the commands of one operation, until there is an answer or its time
/// has passed.
pub(super) struct Call<'a> {
    connector: &'a Connector,
    lane: Arc<Lane>,
    deadline: Deadline,
    backoff: Backoff,
    /// Since when there is no answer.
    started: Instant,
    /// Why the last attempt came to nothing.
    failure: Option<BackendError>,
}

impl<'a> Call<'a> {
    pub(super) fn new(connector: &'a Connector, lane: Arc<Lane>) -> Self {
        let started = Instant::now();
        Self {
            connector,
            lane,
            deadline: Deadline::from(started, connector.settings.request_timeout),
            backoff: Backoff::new(Duration::from_millis(10), Duration::from_millis(250)),
            started,
            failure: None,
        }
    }

    /// Begins anew, with another deadline. `heard` is when the server was last
    /// known to answer.
    pub(super) fn restart(&mut self, heard: Instant, deadline: Deadline) {
        *self = Self {
            deadline,
            started: heard,
            ..Self::new(self.connector, Arc::clone(&self.lane))
        };
    }

    /// The connection for the next attempt; an error if the call's time has
    /// passed or there cannot be one.
    pub(super) async fn connection(&mut self) -> Result<Connection, BackendError> {
        if self.failure.is_some() && self.deadline.has_passed() {
            return Err(self.give_up());
        }
        match self.lane.connection(self.deadline).await {
            Ok(connection) => Ok(connection),
            Err(NoConnection::Failed(error)) => Err(error),
            // An earlier attempt may know more.
            Err(NoConnection::TooLate) => Err(self.give_up()),
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
            Ok(answer) => Some(answer),
            Err(lost) => {
                if !matches!(lost, Lost::TooLate) {
                    self.lane.discard(connection);
                }
                self.failure = Some(match lost {
                    Lost::Broken(error) => self.connector.place.unreachable(error),
                    Lost::Silent | Lost::TooLate => {
                        self.connector.place.silent(self.started.elapsed())
                    }
                });
                None
            }
        }
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
                Remedy::Reconnect => self.lane.discard(connection),
                Remedy::Foreign => return Err(self.foreign(key).await),
                Remedy::ForeignCounter => return Err(self.connector.place.foreign_counter()),
                Remedy::GiveUp => return Err(self.connector.place.refused(&error)),
            }
            self.failure = Some(self.connector.place.refused(&error));
            self.pause().await
        })
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
            let answer = connection.run(build(form), sending).await;
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
            let commands = commands::pipeline(commands.chain(behind.cloned()));
            let values = connection.run_all(&commands, self.deadline).await;
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
                            Remedy::SendScript | Remedy::Retry | Remedy::Reconnect => {
                                again = Some(error);
                            }
                            Remedy::Foreign => {
                                answers[index] = Some(Err(self.foreign(key(index)).await));
                            }
                            Remedy::ForeignCounter | Remedy::GiveUp => {
                                answers[index] = Some(Err(self.connector.place.refused(&error)));
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
                    Err(failure
                        .clone()
                        .unwrap_or_else(|| self.connector.place.nonsense()))
                })
            })
            .collect()
    }

    pub(super) fn nonsense(&self) -> BackendError {
        self.connector.place.nonsense()
    }

    /// Why there is no answer.
    pub(super) fn give_up(&mut self) -> BackendError {
        self.failure.take().unwrap_or_else(|| self.too_late())
    }

    /// There was none in time.
    pub(super) fn too_late(&self) -> BackendError {
        self.connector.place.silent(self.started.elapsed())
    }

    /// Says which of the keys is not dlock's.
    pub(super) async fn foreign(&mut self, key: &str) -> BackendError {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return error,
        };
        let types = connection
            .run_all(&commands::types(key), self.deadline)
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
        self.connector.place.one_is_foreign(key, &types)
    }
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
