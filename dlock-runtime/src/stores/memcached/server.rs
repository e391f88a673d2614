//! The server, with a few connections for each runtime that calls.
//!
//! The client sends one command at a time over a connection, so tasks that call at the same time
//! need a connection each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::connection::Connection;
use super::errors::Failed;
use super::settings::Settings;
use crate::backend::BackendErrorKind;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::{Applied, Context, Failure};
use crate::stores::per_runtime::PerRuntime;
use crate::sync::Mutex;

/// The most connections of one runtime. By default, a server accepts 1024 connections from all
/// its clients.
pub(super) const CONNECTIONS: usize = 16;

/// The server, with the connections of all runtimes.
pub(super) struct Server {
    pub(super) reach: Reach,
    pools: Arc<PerRuntime<Pool>>,
}

/// Where the server is, and how long an answer is awaited.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) settings: Settings,
    pub(super) time: Time,
    /// How long one answer may take.
    pub(super) patience: Duration,
}

/// The connections of one runtime.
struct Pool {
    reach: Reach,
    runtime: Handle,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

/// A connection for one command, and the permit for it.
type Ticket = (Connection, OwnedSemaphorePermit);

/// A command that was sent. If this is dropped, the command still runs to its end, so that its
/// connection can be used again.
pub(super) struct Sent<T: Send + 'static> {
    runtime: Handle,
    /// `None` when it has ended.
    exchange: Option<BoxFuture<'static, Result<T, Failed>>>,
}

/// An exchange over a connection.
pub(super) trait Command<T>:
    for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Failed>> + Send + 'static
{
}

impl<T, F> Command<T> for F where
    F: for<'c> FnOnce(&'c mut Connection) -> BoxFuture<'c, Result<T, Failed>> + Send + 'static
{
}

impl Server {
    pub(super) fn new(settings: Settings, context: &Context) -> Self {
        Self {
            reach: Reach {
                settings,
                time: context.time.clone(),
                patience: context.patience(),
            },
            pools: PerRuntime::new(),
        }
    }

    /// Sends a command.
    pub(super) async fn exchange<T: Send + 'static>(
        &self,
        deadline: Deadline,
        command: impl Command<T>,
    ) -> Result<T, Failure> {
        let patience = self.reach.patience;
        let asked = self.ask(deadline, patience, &mut None, command).await;
        asked.map(|(answer, _)| answer)
    }

    /// Sends a command, waits at most `patience` for the answer, and also returns when it was
    /// sent. Until the answer has come, the command is in `in_flight`.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        deadline: Deadline,
        patience: Duration,
        in_flight: &mut Option<Sent<T>>,
        command: impl Command<T>,
    ) -> Result<(T, Instant), Failure> {
        let Reach { settings, time, .. } = &self.reach;
        let pool = self.pool()?;
        let ticket = pool.ticket(deadline).await;
        let ticket = ticket.map_err(|failed| failed.at(settings, time.now()).with(Applied::No))?;
        let sent_at = time.now();
        let by = deadline.min(Deadline::from(sent_at, patience));
        let sent = in_flight.insert(Sent {
            runtime: pool.runtime.clone(),
            exchange: None,
        });
        let exchange = sent
            .exchange
            .insert(Box::pin(pool.run(ticket, by, command)));
        let answer = exchange.await;
        sent.exchange = None;
        *in_flight = None;
        answer
            .map(|answer| (answer, sent_at))
            .map_err(|failed| failed.at(settings, sent_at))
    }

    /// The connections of the calling runtime.
    fn pool(&self) -> Result<Arc<Pool>, Failure> {
        let pool = self.pools.here(|runtime| {
            let pool = Pool {
                reach: self.reach.clone(),
                runtime: runtime.clone(),
                permits: Arc::new(Semaphore::new(CONNECTIONS)),
                idle: Mutex::default(),
            };
            (Arc::new(pool), std::future::pending())
        });
        pool.map_err(Failure::refused)
    }

    /// Closes idle connections now, and the others after their use.
    pub(super) fn close(&self) {
        for pool in self.pools.close() {
            pool.permits.close();
            pool.idle.lock().clear();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

impl Pool {
    /// An idle connection, or a new one.
    async fn ticket(self: &Arc<Self>, deadline: Deadline) -> Result<Ticket, Failed> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned()
            && let Some(connection) = self.idle.lock().pop()
        {
            return Ok((connection, permit));
        }
        // Boxed so that not every call needs room for it. `bound` uses the timers of this runtime if
        // it has some, as it does for the command. Those of the manager would wake its thread twice
        // for each call that finds no idle connection.
        let next = Box::pin(self.reach.time.bound(deadline, self.next_ticket()));
        next.await.unwrap_or(Err(Failed::Silent))
    }

    async fn next_ticket(self: &Arc<Self>) -> Result<Ticket, Failed> {
        loop {
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            let permit = permit.map_err(|_| {
                Failed::not_done(BackendErrorKind::Unavailable, "the backend has stopped", "")
            })?;
            let idle = self.idle.lock().pop();
            match idle {
                Some(connection) => return Ok((connection, permit)),
                None => self.open(permit).await?,
            }
        }
    }

    /// Opens one more connection, for the next task that asks. This is a task of the runtime,
    /// since a runtime that was built without I/O or timers panics here, and the panic must not
    /// reach the caller. The task continues when the caller has gone, and keeps the permit
    /// meanwhile, since its connection counts.
    async fn open(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Result<(), Failed> {
        let pool = Arc::clone(self);
        let opening = self.runtime.spawn(async move {
            let Reach { time, patience, .. } = &pool.reach;
            let opening = Connection::open(&pool.reach.settings);
            let opened = time.bound(time.after(*patience), opening).await;
            pool.keep(opened.unwrap_or(Err(Failed::Silent))?);
            drop(permit);
            Ok(())
        });
        opening.await.unwrap_or_else(|_| {
            Err(Failed::not_done(
                BackendErrorKind::Unsupported,
                "the tokio runtime of this call is shutting down, or has no I/O or timers",
                "call it from a runtime with `enable_all()`",
            ))
        })
    }

    /// Sends a command. If no answer comes until `by`, the connection is closed.
    async fn run<T>(
        self: Arc<Self>,
        ticket: Ticket,
        by: Deadline,
        command: impl Command<T>,
    ) -> Result<T, Failed> {
        let (mut connection, _permit) = ticket;
        let answer = self.reach.time.bound(by, command(&mut connection)).await;
        let answer = answer.unwrap_or(Err(Failed::Silent));
        match answer {
            // The idle connections lead to the same server, so they are closed too.
            Err(Failed::Broken(_) | Failed::Silent) => self.idle.lock().clear(),
            _ => self.keep(connection),
        }
        answer
    }

    /// Keeps a connection for the next command.
    fn keep(&self, connection: Connection) {
        if connection.is_open() && !self.permits.is_closed() {
            self.idle.lock().push(connection);
        }
    }
}

impl<T: Send + 'static> Sent<T> {
    /// Moves the command to a task of its runtime, which runs it to its end.
    pub(super) fn leave(&mut self) -> Option<JoinHandle<Result<T, Failed>>> {
        Some(self.runtime.spawn(self.exchange.take()?))
    }
}

impl<T: Send + 'static> Drop for Sent<T> {
    fn drop(&mut self) {
        self.leave();
    }
}
