//! Taking a lock.
//!
//! A free lock is taken with a plain `SET NX PX`. Everything else is one script,
//! `acquire.lua`, which is asked until it grants: to wait is to ask once more
//! whenever there is cause. The script may be asked twice; the `SET` may not, as
//! an answer that was lost and a lock held by somebody else look the same to it.
//! So it is sent once at most, and its lost answer is asked for by script.

use std::time::Instant;

use redis::{Pipeline, Value};

use super::call::{Attempt, Call};
use super::clock::Deadline;
use super::commands::{self, Patience};
use super::connector::Connection;
use super::core::Core;
use super::errors::{Remedy, remedy};
use super::give_back::GiveBack;
use super::scripts::Form;
use crate::backend::{BackendError, Grant, Mode, Request};
use crate::token::TOKENS_PER_GRANT;

impl Core {
    pub(super) async fn try_acquire(
        &self,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        let mut acquisition = Acquisition::new(self, request)?;
        if request.mode == Mode::Write
            && let Some(grant) = acquisition.take().await?
        {
            return Ok(Some(grant));
        }
        acquisition.ask(Patience::Try).await
    }

    pub(super) async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let mut acquisition = Acquisition::new(self, request)?;
        if request.mode == Mode::Write
            && let Some(grant) = acquisition.take().await?
        {
            return Ok(grant);
        }
        let waiting = self.shared.waiters.enter(request);
        loop {
            if let Some(grant) = acquisition.ask(Patience::Queue).await? {
                return Ok(grant);
            }
            waiting.woken().await;
            acquisition.give_more_time();
        }
    }
}

/// A request on its way to a grant. Dropped before that, it gives back what it
/// may have left at the server.
struct Acquisition<'a> {
    core: &'a Core,
    request: &'a Request,
    call: Call<'a>,
    trace: Trace,
}

/// What the server may know of a request, as far as can be told from here.
#[derive(Default)]
struct Trace {
    /// Commands are on their way over this connection.
    in_flight: Option<Connection>,
    /// Commands that were last sent at this time were not answered, and may
    /// be run yet.
    unanswered: Option<Instant>,
    /// It has a place in the queue, or the lock.
    left: bool,
}

impl<'a> Acquisition<'a> {
    fn new(core: &'a Core, request: &'a Request) -> Result<Self, BackendError> {
        Ok(Self {
            core,
            request,
            call: core.call()?,
            trace: Trace::default(),
        })
    }

    /// Takes the lock if it is free, in the cheapest way. `None` says nothing:
    /// the script must be asked.
    async fn take(&mut self) -> Result<Option<Grant>, BackendError> {
        let connection = self.call.connection().await?;
        let sent_at = Instant::now();
        let answers = self
            .send(&connection, &commands::take(self.request), sent_at)
            .await;
        let Attempt::Answered(answers) = answers else {
            self.call.pause().await?;
            return Ok(None);
        };
        match <[Value; 2]>::try_from(answers) {
            Ok([Value::Okay, Value::Int(token)]) => {
                self.granted(&connection, token, sent_at).await.map(Some)
            }
            Ok([Value::Nil, _]) => Ok(None),
            Ok([Value::Okay, Value::ServerError(error)]) => {
                // Taken, but without a token. The script asks for one again.
                self.trace.left = true;
                self.call
                    .refused(&connection, &self.request.key, &error)
                    .await?;
                Ok(None)
            }
            Ok([Value::ServerError(error), _]) => {
                self.call
                    .refused(&connection, &self.request.key, &error)
                    .await?;
                Ok(None)
            }
            _ => {
                self.trace.unanswered = Some(sent_at);
                Err(self.call.nonsense())
            }
        }
    }

    /// Asks for the lock, or for a place in its queue.
    async fn ask(&mut self, patience: Patience) -> Result<Option<Grant>, BackendError> {
        let mut form = Form::Digest;
        loop {
            let connection = self.call.connection().await?;
            let sent_at = Instant::now();
            let command = commands::acquire(form, self.request, self.core.shared.process, patience);
            let answers = self
                .send(&connection, &commands::pipeline([command]), sent_at)
                .await;
            let Attempt::Answered(answers) = answers else {
                self.call.pause().await?;
                continue;
            };
            match answers.into_iter().next() {
                Some(Value::Int(0)) => {
                    self.trace.left = patience == Patience::Queue;
                    self.core.shared.waiters.heard(sent_at);
                    return Ok(None);
                }
                Some(Value::Int(last)) => {
                    return self.granted(&connection, last, sent_at).await.map(Some);
                }
                Some(Value::ServerError(error)) => {
                    if remedy(&error) == Remedy::SendScript {
                        form = Form::Source;
                    }
                    self.call
                        .refused(&connection, &self.request.key, &error)
                        .await?;
                }
                _ => {
                    self.trace.unanswered = Some(sent_at);
                    return Err(self.call.nonsense());
                }
            }
        }
    }

    /// Sends commands that may leave something at the server.
    async fn send(
        &mut self,
        connection: &Connection,
        commands: &Pipeline,
        sent_at: Instant,
    ) -> Attempt {
        self.trace.in_flight = Some(connection.clone());
        let attempt = self.call.attempt(connection, commands).await;
        self.trace.in_flight = None;
        if let Attempt::Lost = attempt {
            self.trace.unanswered = Some(sent_at);
        }
        attempt
    }

    /// The lock is held. `last` is the last of the numbers that were drawn.
    async fn granted(
        &mut self,
        connection: &Connection,
        last: i64,
        sent_at: Instant,
    ) -> Result<Grant, BackendError> {
        // Until the caller has the grant, it is to be given back.
        self.trace.left = true;
        let mut first = first_of(last);
        if first <= connection.token_floor() {
            // The counter has lost what it was when this connection was made.
            first = self.draw_again(connection).await?;
        }
        let trace = std::mem::take(&mut self.trace);
        if let Some(sent_at) = trace.unanswered {
            self.core.suspects.add(self.request, sent_at);
        }
        Ok(Grant::new(
            first.into(),
            tokio::time::Instant::from_std(sent_at),
        ))
    }

    /// Lifts the counter above what it was, and draws from it. Still before
    /// any later grant, as the lock is held.
    async fn draw_again(&mut self, connection: &Connection) -> Result<u64, BackendError> {
        let commands = commands::pipeline([
            commands::lift_tokens(connection.token_floor()),
            commands::draw_token(),
        ]);
        match self.call.attempt(connection, &commands).await {
            Attempt::Lost => Err(self.call.give_up()),
            Attempt::Answered(answers) => match <[Value; 2]>::try_from(answers) {
                Ok([Value::Int(_), Value::Int(last)]) => Ok(first_of(last)),
                Ok([Value::ServerError(error), _] | [_, Value::ServerError(error)]) => {
                    Err(self.core.shared.connector.place.refused(&error))
                }
                _ => Err(self.call.nonsense()),
            },
        }
    }

    /// After a time of waiting, the server is asked again. It has until its
    /// silence has lasted for the request timeout, counted from when it was
    /// last heard of; but long enough for a new connection in any case.
    fn give_more_time(&mut self) {
        let timeout = self.core.shared.connector.settings.request_timeout;
        let deadline = Deadline::from(self.core.shared.waiters.last_heard(), timeout)
            .max(Deadline::after(timeout / 4));
        self.call.restart(deadline);
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        let Trace {
            in_flight,
            unanswered,
            left,
        } = std::mem::take(&mut self.trace);
        if in_flight.is_some() || unanswered.is_some() || left {
            self.core.hub.give_back(GiveBack {
                request: self.request.clone(),
                behind: in_flight,
                unanswered,
            });
        }
    }
}

/// `INCRBY` answers with the last of the numbers that it reserves.
fn first_of(last: i64) -> u64 {
    last.unsigned_abs().saturating_sub(TOKENS_PER_GRANT - 1)
}
