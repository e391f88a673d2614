//! What is asked of one node.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use redis::{ServerError, Value};

use super::super::commands::{self, Patience};
use super::super::connection::Connection;
use super::super::connections::NoConnection;
use super::super::errors::{Remedy, remedy};
use super::super::lost::Lost;
use super::super::scripts::Form;
use super::super::values::LockValue;
use super::ballot::{Vote, first_token};
use super::nodes::Node;
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, Mode, Request};

/// When a request was sent to a node, and over which connection.
pub(super) type Sent = OnceLock<(Connection, Instant)>;

/// What a node has answered.
pub(super) struct Answer {
    pub(super) vote: Vote,
    pub(super) fate: Fate,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The node has answered it.
    Answered,
    /// It was not sent, or may be answered yet.
    Open,
    /// It was sent, and its answer will not come.
    Lost,
}

impl Answer {
    fn none(error: BackendError, fate: Fate) -> Self {
        Self {
            vote: Vote::Failed(error),
            fate,
        }
    }
}

impl Node {
    /// Asks for the node's vote. `sent` is set when the request is on its way.
    pub(super) async fn vote(&self, request: &Request, sent: &Sent, deadline: Deadline) -> Answer {
        let start = Instant::now();
        let silent = || self.place().silent(start.elapsed());
        let lane = match self.one.connections.here() {
            Ok(lane) => lane,
            Err(error) => return Answer::none(error, Fate::Open),
        };
        let mut form = Form::Digest;
        loop {
            let connection = match lane.connection(deadline).await {
                Ok(connection) => connection,
                Err(NoConnection::Failed(error)) => return Answer::none(error, Fate::Open),
                Err(NoConnection::TooLate) => return Answer::none(silent(), Fate::Open),
            };
            let space = self.servers().space();
            let value = commands::value(space, &request.key);
            let commands = match request.mode {
                Mode::Write => {
                    let draw = commands::draw_tokens(space, 1);
                    commands::pipeline([commands::take(space, request), draw, value])
                }
                Mode::Read => {
                    let process = self.running.store.process;
                    let read = commands::acquire(space, form, request, process, Patience::Try, 0);
                    commands::pipeline([read, value])
                }
            };
            let _ = sent.set((connection.clone(), Instant::now()));
            let answers = match connection.run_all(&commands, deadline).await {
                Ok(answers) => answers,
                Err(Lost::TooLate) => return Answer::none(silent(), Fate::Open),
                Err(lost) => {
                    lane.discard(&connection);
                    let error = match lost {
                        Lost::Broken(error) => self.place().unreachable(error),
                        Lost::Silent | Lost::TooLate => silent(),
                    };
                    return Answer::none(error, Fate::Lost);
                }
            };
            let mut answers = answers.into_iter();
            let first = answers.next().unwrap_or_default();
            let vote = match (request.mode, first) {
                (Mode::Write, Value::Okay) => match answers.next() {
                    Some(Value::Int(last)) => self.drawn(&connection, last),
                    Some(Value::ServerError(error)) if remedy(&error) == Remedy::ForeignCounter => {
                        Vote::Failed(self.place().foreign_counter(""))
                    }
                    Some(Value::ServerError(error)) => {
                        Vote::Failed(self.refused(&request.key, &error))
                    }
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
                        let connector = lane.connector();
                        let elsewhere = connector.redirected(&error, connection.address());
                        if elsewhere || remedy == Remedy::Reconnect {
                            lane.discard(&connection);
                        }
                        Vote::Failed(self.refused(&request.key, &error))
                    }
                },
                _ => Vote::Failed(self.place().nonsense()),
            };
            let fate = Fate::Answered;
            return Answer { vote, fate };
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
            Remedy::ForeignCounter => self.place().foreign_counter(""),
            _ => self.place().refused(error),
        }
    }

    /// Whether the node has answered that nothing of the election is left.
    pub(super) async fn give_back(&self, election: &Request, deadline: Deadline) -> bool {
        let build = |form| commands::release(self.servers().space(), form, election, None);
        self.ask(&election.key, deadline, build).await.is_ok()
    }

    /// Raises the token counter to `last`.
    pub(super) async fn raise(&self, last: u64, deadline: Deadline) -> Result<(), BackendError> {
        let build = |form| commands::raise_tokens(self.servers().space(), form, last);
        let answer = self.ask("", deadline, build).await?;
        match answer.value {
            Value::Int(counter) if counter.unsigned_abs() >= last => Ok(()),
            _ => Err(answer.link.place().nonsense()),
        }
    }
}
