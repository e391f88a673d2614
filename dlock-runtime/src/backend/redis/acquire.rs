//! Taking a lock.
//!
//! A free lock is taken with a plain `SET NX PX`. Everything else is one script,
//! `acquire.lua`, which is asked until it grants: to wait is to ask once more
//! whenever there is cause. The script may be asked twice; the `SET` may not, as
//! an answer that was lost and a lock held by somebody else look the same to it.
//! So it is sent once at most, and its lost answer is asked for by script.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{ServerError, Value};

use super::call::{Call, Rare};
use super::commands::{self, Patience};
use super::confirm::Confirmer;
use super::connection::Connection;
use super::core::Core;
use super::errors::{Remedy, remedy};
use super::give_back::GiveBack;
use super::lost::Lost;
use super::names::Keyspace;
use super::scripts::Form;
use super::shared::{Servers, Shared};
use crate::backend::clock::{Backoff, Deadline};
use crate::backend::{BackendError, BackendErrorKind, Grant, Mode, Renewed, Request};
use crate::token::TOKENS_PER_GRANT;

impl Core {
    pub(super) async fn try_acquire(
        &self,
        request: &Request,
    ) -> Result<Option<Grant>, BackendError> {
        let mut acquisition = Acquisition::new(self, request)?;
        if acquisition.may_be_taken()
            && let Some(grant) = acquisition.take().await?
        {
            return Ok(Some(grant));
        }
        Box::pin(acquisition.ask(Patience::Try)).await
    }

    pub(super) async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let mut acquisition = Acquisition::new(self, request)?;
        if acquisition.may_be_taken()
            && let Some(grant) = acquisition.take().await?
        {
            return Ok(grant);
        }
        let ears = match &self.shared.servers {
            Servers::One(_) | Servers::Voter { .. } => None,
            Servers::Cluster { ears, .. } => Some(ears),
        };
        if let Some(ears) = ears
            && !ears.listen_for(&request.key)
            && let Some(grant) = acquisition.ask(Patience::Try).await?
        {
            return Ok(grant);
        }
        let waiting = self.shared.waiters.enter(request);
        let mut attending = ears.map(|ears| ears.attend(&request.key));
        if let Some(attending) = &mut attending {
            // Who cannot be told would be passed over. But whether it can must
            // not decide on whether it may wait.
            let limit = Deadline::after(self.shared.connector.settings.patience() / 2);
            let heard = attending.is_heard();
            let _ = Box::pin(self.shared.connector.clock.bound(limit, heard)).await;
            acquisition.give_more_time();
        }
        loop {
            if let Some(grant) = acquisition.ask(Patience::Queue).await? {
                self.shared.waiters.holders.enter(request);
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
            call: core.call(&request.key)?,
            trace: Trace::default(),
        })
    }

    /// Whether it can be had by plain commands. In a cluster, where each slot has
    /// a counter of its own, the script is the cheapest way.
    fn may_be_taken(&self) -> bool {
        self.request.mode == Mode::Write && *self.core.shared.space() == Keyspace::Server
    }

    /// Takes the lock if it is free, in the cheapest way. `None` says nothing:
    /// the script must be asked.
    async fn take(&mut self) -> Result<Option<Grant>, BackendError> {
        let connection = self.call.connection().await?;
        let sending = self.call.sending();
        let sent_at = sending.at;
        self.trace.in_flight = Some(connection.clone());
        let set = commands::take(&Keyspace::Server, self.request);
        let answers = connection.take(set, sending).await;
        match self.hear(&connection, answers, sent_at) {
            None => self.call.pause().await?,
            Some([Value::Okay, Value::Int(token)]) => {
                return self.granted(&connection, token, sent_at).await;
            }
            Some([Value::Nil, _]) => self.request.is_held_by_somebody(),
            Some([Value::Okay, Value::ServerError(error)]) => {
                // Taken, but without a token. The script asks for one again.
                self.trace.left = true;
                self.refused(&connection, error).await?;
            }
            Some([Value::ServerError(error), _]) => self.refused(&connection, error).await?,
            Some(_) => return Err(self.nonsense(sent_at)),
        }
        Ok(None)
    }

    /// Asks for the lock, or for a place in its queue.
    async fn ask(&mut self, patience: Patience) -> Result<Option<Grant>, BackendError> {
        let mut form = Form::Digest;
        loop {
            let connection = self.call.connection().await?;
            let sending = self.call.sending();
            let sent_at = sending.at;
            let Shared {
                connector, process, ..
            } = &*self.core.shared;
            let command = commands::acquire(
                &connector.settings.space,
                form,
                self.request,
                *process,
                patience,
                connector.highest_token.load(Ordering::Relaxed),
            );
            self.trace.in_flight = Some(connection.clone());
            let answer = self.call.send(&connection, command, sending).await;
            match self.hear(&connection, answer, sent_at) {
                None => self.call.pause().await?,
                Some(Value::Int(0)) => {
                    self.trace.left = patience == Patience::Queue;
                    self.request.is_held_by_somebody();
                    self.core.shared.waiters.heard(sent_at);
                    return Ok(None);
                }
                Some(Value::Int(last)) => {
                    if let Some(grant) = self.granted(&connection, last, sent_at).await? {
                        return Ok(Some(grant));
                    }
                    self.call.pause().await?;
                }
                Some(Value::ServerError(error)) => {
                    if remedy(&error) == Remedy::SendScript {
                        form = Form::Source;
                    } else {
                        // A script that fails is not undone.
                        self.trace.left = true;
                    }
                    self.refused(&connection, error).await?;
                }
                Some(_) => return Err(self.nonsense(sent_at)),
            }
        }
    }

    /// With an answer, nothing is on its way any more.
    fn hear<T>(
        &mut self,
        connection: &Connection,
        answer: Result<T, Lost>,
        sent_at: Instant,
    ) -> Option<T> {
        if !matches!(answer, Err(Lost::TooLate)) {
            self.trace.in_flight = None;
            if answer.is_err() {
                self.trace.unanswered = Some(sent_at);
            }
        }
        self.call.hear(connection, answer)
    }

    fn refused<'c>(
        &'c mut self,
        connection: &'c Connection,
        error: ServerError,
    ) -> Rare<'c, Result<(), BackendError>> {
        self.call.refused(connection, &self.request.key, error)
    }

    fn nonsense(&mut self, sent_at: Instant) -> BackendError {
        self.trace.unanswered = Some(sent_at);
        self.call.nonsense()
    }

    /// The lock is held. `last` is the last of the numbers that were drawn.
    /// `None`: it has been lost already.
    async fn granted(
        &mut self,
        connection: &Connection,
        last: i64,
        mut sent_at: Instant,
    ) -> Result<Option<Grant>, BackendError> {
        // Until the caller has the grant, it is to be given back.
        self.trace.left = true;
        let mut first = first_of(last);
        if first <= connection.token_floor() {
            // The counter has lost what it was when this connection was made.
            first = Box::pin(self.draw_again(connection)).await?;
        }
        let highest = &self.core.shared.connector.highest_token;
        highest.fetch_max(first + (TOKENS_PER_GRANT - 1), Ordering::Relaxed);
        if let Some(confirmer) = &self.core.confirmer {
            match Box::pin(self.confirmed(confirmer)).await? {
                Renewed::Extended { sent_at: renewed } => sent_at = renewed.into_std(),
                Renewed::Gone => return Ok(None),
            }
        }
        let trace = std::mem::take(&mut self.trace);
        if let Some(sent_at) = trace.unanswered {
            let Request { owner, ttl, .. } = *self.request;
            let until = sent_at.checked_add(ttl);
            self.core.unknown.add(owner, sent_at, until, Instant::now());
        }
        Ok(Some(Grant::new(
            first.into(),
            tokio::time::Instant::from_std(sent_at),
        )))
    }

    /// Waits until replicas have the lock too, for as long as the call may take:
    /// they may be on their way back.
    async fn confirmed(&self, confirmer: &Confirmer) -> Result<Renewed, BackendError> {
        let clock = &self.core.shared.connector.clock;
        let deadline = self.call.deadline();
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(250));
        let mut failure = None;
        loop {
            let renewal = confirmer.renew(std::slice::from_ref(self.request));
            let Ok(mut renewed) = clock.bound(deadline, renewal).await else {
                return Err(failure.unwrap_or_else(|| self.call.too_late()));
            };
            match renewed.pop() {
                Some(Err(error)) if error.kind() == BackendErrorKind::Unavailable => {
                    failure = Some(error);
                    clock.sleep(deadline.within(backoff.pause())).await;
                }
                Some(renewed) => return renewed,
                None => return Err(self.call.nonsense()),
            }
        }
    }

    /// Lifts the counter above what it was, and draws from it. Still before
    /// any later grant, as the lock is held.
    async fn draw_again(&mut self, connection: &Connection) -> Result<u64, BackendError> {
        let commands = commands::pipeline([
            commands::lift_tokens(&Keyspace::Server, connection.token_floor()),
            commands::draw_tokens(&Keyspace::Server, 1),
        ]);
        let answers = connection.run_all(&commands, self.call.deadline()).await;
        let Some(answers) = self.call.hear(connection, answers) else {
            return Err(self.call.give_up());
        };
        match <[Value; 2]>::try_from(answers) {
            Ok([Value::Int(_), Value::Int(last)]) => Ok(first_of(last)),
            Ok([Value::ServerError(error), _] | [_, Value::ServerError(error)]) => {
                Err(self.core.shared.connector.place.refused(&error))
            }
            _ => Err(self.call.nonsense()),
        }
    }

    /// After a time of waiting, the server is asked again. It has until its
    /// silence has lasted for the request timeout, counted from when it was
    /// last heard of; but long enough for a new connection in any case.
    fn give_more_time(&mut self) {
        let timeout = self.core.shared.connector.settings.request_timeout;
        let heard = self.core.shared.waiters.last_heard();
        let deadline = Deadline::from(heard, timeout).max(Deadline::after(timeout / 4));
        self.call.restart(heard, deadline);
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
                release: self.core.shared.release,
            });
        }
    }
}

/// `INCRBY` answers with the last of the numbers that it reserves.
fn first_of(last: i64) -> u64 {
    last.unsigned_abs().saturating_sub(TOKENS_PER_GRANT - 1)
}
