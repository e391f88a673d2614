//! A few connections for each runtime that calls.
//!
//! The client sends one command at a time over a connection, so tasks that call
//! at the same time need one each. A socket belongs to the runtime that made it:
//! it is not read while that runtime does not run, and is gone with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{AbortHandle, JoinHandle};

use super::connection::Connection;
use super::errors::{self, Failure};
use super::settings::Settings;
use crate::backend::BackendError;
use crate::deadline::Deadline;
use crate::engine::time::Time;
use crate::store::Context;

/// So many connections one runtime has at most. A server takes 1024 from all
/// its clients, unless it is told otherwise.
pub(super) const CONNECTIONS: usize = 16;

/// The connections of a backend, by runtime.
pub(super) struct Lanes {
    pub(super) settings: Settings,
    time: Time,
    /// How long one answer may take.
    pub(super) patience: Duration,
    /// A service has one runtime, or a few: they are soon looked through.
    lanes: RwLock<Vec<(Id, Arc<Lane>)>>,
}

/// The connections of one runtime.
pub(super) struct Lane {
    settings: Settings,
    time: Time,
    patience: Duration,
    runtime: Handle,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
    /// The task that notices the end of the runtime.
    sentry: Mutex<Option<AbortHandle>>,
}

/// A connection for one command, and the right to have it.
pub(super) struct Ticket {
    lane: Arc<Lane>,
    connection: Connection,
    permit: OwnedSemaphorePermit,
}

/// A command that was sent. It is run to its end also when this is dropped: its
/// connection is of use to the next one.
pub(super) struct Sent<T: Send + 'static> {
    lane: Arc<Lane>,
    exchange: Option<Exchange<T>>,
}

type Exchange<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

impl Lanes {
    pub(super) fn new(settings: Settings, context: &Context) -> Arc<Self> {
        Arc::new(Self {
            settings,
            time: context.time.clone(),
            patience: context.patience(),
            lanes: RwLock::default(),
        })
    }

    /// The lane of the runtime that this is called on.
    pub(super) fn here(self: &Arc<Self>) -> Result<Arc<Lane>, BackendError> {
        let runtime = Handle::try_current().map_err(|_| errors::outside_runtime())?;
        let id = runtime.id();
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = find(&lanes, id) {
            return Ok(lane);
        }
        drop(lanes);
        let lane = Arc::new(Lane {
            settings: self.settings.clone(),
            time: self.time.clone(),
            patience: self.patience,
            runtime,
            permits: Arc::new(Semaphore::new(CONNECTIONS)),
            idle: Mutex::default(),
            sentry: Mutex::default(),
        });
        {
            let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(lane) = find(&lanes, id) {
                return Ok(lane);
            }
            lanes.push((id, Arc::clone(&lane)));
        }
        let sentry = Sentry {
            lanes: Arc::downgrade(self),
            runtime: id,
        };
        // Its owner is the entry, which ends it. A runtime that is shutting
        // down drops the task here and now, and with it the entry.
        let task = lane.runtime.spawn(async move {
            let _sentry = sentry;
            std::future::pending::<()>().await;
        });
        *lock(&lane.sentry) = Some(task.abort_handle());
        Ok(lane)
    }

    /// Closes the connections that nobody uses, and the others after their use.
    pub(super) fn close(&self) {
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        for (_, lane) in std::mem::take(&mut *lanes) {
            lane.permits.close();
            lock(&lane.idle).clear();
            if let Some(sentry) = lock(&lane.sentry).take() {
                sentry.abort();
            }
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.close();
    }
}

/// Lives as long as its runtime.
struct Sentry {
    lanes: Weak<Lanes>,
    runtime: Id,
}

impl Drop for Sentry {
    /// A runtime that ends drops its tasks, and this with them.
    fn drop(&mut self) {
        if let Some(lanes) = self.lanes.upgrade() {
            let mut lanes = lanes.lanes.write().unwrap_or_else(PoisonError::into_inner);
            lanes.retain(|(runtime, _)| *runtime != self.runtime);
        }
    }
}

impl Lane {
    /// A connection: one that is idle, or a new one.
    pub(super) async fn ticket(self: &Arc<Self>, deadline: Deadline) -> Result<Ticket, Failure> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned()
            && let Some(connection) = lock(&self.idle).pop()
        {
            return Ok(Ticket {
                lane: Arc::clone(self),
                connection,
                permit,
            });
        }
        // Seldom, and so not in the room of every call.
        Box::pin(self.next_ticket(deadline)).await
    }

    async fn next_ticket(self: &Arc<Self>, deadline: Deadline) -> Result<Ticket, Failure> {
        // By the manager's timers: until there is a connection it is not known
        // whether this runtime has any.
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&self.permits).acquire_owned() => permit,
            () = self.time.sleep(deadline) => return Err(Failure::Silent),
        };
        let permit = permit.map_err(|_| Failure::Stopped)?;
        let idle = lock(&self.idle).pop();
        let Some(connection) = idle else {
            return tokio::select! {
                biased;
                ticket = self.open(permit) => ticket,
                () = self.time.sleep(deadline) => Err(Failure::Silent),
            };
        };
        Ok(Ticket {
            lane: Arc::clone(self),
            connection,
            permit,
        })
    }

    /// In a task of the runtime: one that was built without I/O or timers answers
    /// with a panic, which must not be its caller's. The task goes on when the
    /// caller has gone, and has the permit as long: its connection counts, and is
    /// for the next one.
    async fn open(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Result<Ticket, Failure> {
        let lane = Arc::clone(self);
        let (hand, handed) = oneshot::channel();
        self.runtime.spawn(async move {
            let deadline = lane.time.after(lane.patience);
            let opening = Connection::open(&lane.settings);
            let opened = lane.time.bound(deadline, opening).await;
            let ticket = opened
                .unwrap_or(Err(Failure::Silent))
                .map(|connection| Ticket {
                    lane: Arc::clone(&lane),
                    connection,
                    permit,
                });
            if let Err(Ok(ticket)) = hand.send(ticket) {
                lane.keep(ticket.connection);
            }
        });
        handed.await.unwrap_or(Err(Failure::NoRuntime))
    }

    /// Keeps a connection for the next one who needs it.
    fn keep(&self, connection: Connection) {
        if connection.is_open() && !self.permits.is_closed() {
            lock(&self.idle).push(connection);
        }
    }

    /// The connections that were made before one that broke lead to where that
    /// one did.
    fn forget_idle(&self) {
        lock(&self.idle).clear();
    }
}

impl Ticket {
    /// Sends what `command` does, once this is polled.
    pub(super) fn send<T, F>(self, command: impl FnOnce(Connection) -> F) -> Sent<T>
    where
        T: Send + 'static,
        F: Future<Output = (Connection, Result<T, Failure>)> + Send + 'static,
    {
        let Self {
            lane,
            connection,
            permit,
        } = self;
        let exchange = command(connection);
        let owner = Arc::clone(&lane);
        Sent {
            exchange: Some(Box::pin(async move {
                let (connection, answer) = exchange.await;
                if matches!(answer, Err(Failure::Broken(_))) {
                    lane.forget_idle();
                } else {
                    lane.keep(connection);
                }
                drop(permit);
                answer
            })),
            lane: owner,
        }
    }
}

impl<T: Send + 'static> Sent<T> {
    /// Waits for the answer. A connection on which none comes by then is closed.
    pub(super) async fn answer(&mut self, deadline: Deadline) -> Result<T, Failure> {
        let Some(exchange) = &mut self.exchange else {
            return Err(Failure::Silent);
        };
        let answer = conclude(&self.lane, exchange, deadline).await;
        self.exchange = None;
        answer
    }

    /// Leaves it to its runtime, which ends it one way or the other.
    pub(super) fn leave(mut self) -> Option<JoinHandle<Result<T, Failure>>> {
        self.take_leave()
    }

    fn take_leave(&mut self) -> Option<JoinHandle<Result<T, Failure>>> {
        let mut exchange = self.exchange.take()?;
        let lane = Arc::clone(&self.lane);
        // From now on, whenever its runtime comes to it: what gives the lock back
        // does not wait longer.
        let deadline = lane.time.after(lane.patience);
        Some(self.lane.runtime.spawn(async move {
            if lane.time.has_passed(deadline) {
                return Err(Failure::Silent);
            }
            conclude(&lane, &mut exchange, deadline).await
        }))
    }
}

async fn conclude<T>(
    lane: &Lane,
    exchange: &mut Exchange<T>,
    deadline: Deadline,
) -> Result<T, Failure> {
    match lane.time.bound(deadline, exchange).await {
        Ok(answer) => answer,
        Err(_) => {
            lane.forget_idle();
            Err(Failure::Silent)
        }
    }
}

impl<T: Send + 'static> Drop for Sent<T> {
    fn drop(&mut self) {
        self.take_leave();
    }
}

fn find(lanes: &[(Id, Arc<Lane>)], runtime: Id) -> Option<Arc<Lane>> {
    lanes
        .iter()
        .find(|(id, _)| *id == runtime)
        .map(|(_, lane)| Arc::clone(lane))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
