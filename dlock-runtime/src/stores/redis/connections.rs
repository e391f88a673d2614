//! The connections to one server: one for each runtime that calls.
//!
//! The client's own `ConnectionManager` (`redis` 1.8) cannot be used. It always connects to one
//! address. It lets commands through before anything can be asked over a new connection, such as
//! the role of a master that has moved, and before a token counter can be raised. It cannot be
//! told that a connection is silent. And it reconnects on whichever runtime has noticed that the
//! connection broke.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};

use super::connection::Connection;
use super::connector::{Connector, Listener};
use super::errors;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::store::Failure;
use crate::stores::per_runtime::PerRuntime;

/// The first pause between two connections.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The connections to one server. Dropping this closes them all.
pub(super) struct Connections {
    pub(super) connector: Arc<Connector>,
    by_runtime: Arc<PerRuntime<RuntimeConnection>>,
    /// Messages come over the connection of the manager's runtime. In a cluster they have a
    /// connection of their own, see [`Shards`](super::connection::Shards).
    listening: Arc<PerRuntime<RuntimeConnection>>,
    of_manager: Arc<RuntimeConnection>,
}

/// The connection of one runtime. It is opened again whenever it is needed and there is none.
///
/// A task of that runtime opens it, not a caller: a caller's future may be dropped or left
/// unpolled at any await, and the other callers would wait for it.
pub(super) struct RuntimeConnection {
    pub(super) connector: Arc<Connector>,
    state: watch::Sender<State>,
    demand: Notify,
}

#[derive(Clone)]
enum State {
    /// There is no connection.
    Idle,
    /// The connection; it may have been discarded since.
    Ready(Connection),
    /// The last attempt failed.
    Failed(BackendError),
    /// The runtime has ended.
    Gone,
}

impl Connections {
    pub(super) fn new(connector: Arc<Connector>, listener: Option<Listener>) -> Self {
        let by_runtime = PerRuntime::new();
        let listening = match connector.space.is_in_slots() {
            false => Arc::clone(&by_runtime),
            true => PerRuntime::new(),
        };
        let of_manager = listening.of(connector.time.manager(), |_| kept(&connector, listener));
        Self {
            connector,
            by_runtime,
            listening,
            of_manager,
        }
    }

    /// The connection over which messages come.
    pub(super) fn of_manager(&self) -> &RuntimeConnection {
        &self.of_manager
    }

    /// The connection of the calling runtime.
    pub(super) fn here(&self) -> Result<Arc<RuntimeConnection>, Failure> {
        let here = self.by_runtime.here(|_| kept(&self.connector, None));
        here.map_err(Failure::refused)
    }

    /// An open connection of the calling runtime.
    pub(super) async fn connection(&self, deadline: Deadline) -> Result<Connection, Failure> {
        self.here()?.connection(deadline).await
    }

    /// Closes every connection. Later requests fail.
    pub(super) fn close(&self) {
        self.by_runtime.close();
        self.listening.close();
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.close();
    }
}

impl RuntimeConnection {
    /// The connection, if it is open.
    pub(super) fn ready(&self) -> Option<Connection> {
        match &*self.state.borrow() {
            State::Ready(connection) if connection.is_open() => Some(connection.clone()),
            _ => None,
        }
    }

    /// Starts opening a connection, if there is none.
    pub(super) fn prepare(&self) {
        if self.ready().is_none() {
            self.demand.notify_one();
        }
    }

    /// The connection; waits until it is open.
    pub(super) async fn connection(&self, deadline: Deadline) -> Result<Connection, Failure> {
        if let Some(connection) = self.ready() {
            return Ok(connection);
        }
        // Rare, and boxed so that not every call needs room for it.
        self.next_connection(deadline).await
    }

    fn next_connection(&self, deadline: Deadline) -> BoxFuture<'_, Result<Connection, Failure>> {
        Box::pin(async move {
            let mut state = self.state.subscribe();
            let (mut asked, mut last) = (false, None);
            // The timer is the manager's: the calling runtime may have none, which shows only when a
            // connection is opened.
            let timeout = self.connector.time.sleep(deadline);
            tokio::pin!(timeout);
            loop {
                match &*state.borrow_and_update() {
                    State::Ready(connection) if connection.is_open() => {
                        return Ok(connection.clone());
                    }
                    State::Gone => return Err(Failure::refused(errors::runtime_gone())),
                    // A failure from before this call says nothing about now.
                    State::Failed(error) if asked => {
                        if error.kind() != BackendErrorKind::Unavailable {
                            return Err(Failure::refused(error.clone()));
                        }
                        last = Some(error.clone());
                    }
                    State::Failed(_) | State::Ready(_) | State::Idle => {}
                }
                asked = true;
                self.demand.notify_one();
                tokio::select! {
                    biased;
                    // Cannot fail: `self` has the sender.
                    _ = state.changed() => {}
                    () = &mut timeout => {
                        return Err(last.map_or_else(Failure::not_sent, Failure::refused));
                    }
                }
            }
        })
    }
}

/// A connection, and the task that keeps it open.
fn kept(
    connector: &Arc<Connector>,
    listener: Option<Listener>,
) -> (Arc<RuntimeConnection>, impl Future<Output = ()> + use<>) {
    let kept = Arc::new(RuntimeConnection {
        connector: Arc::clone(connector),
        state: watch::Sender::new(State::Idle),
        demand: Notify::new(),
    });
    let gone = Gone(Arc::clone(&kept));
    (kept, async move {
        gone.0.keep(listener.map(Arc::new)).await;
    })
}

impl RuntimeConnection {
    async fn keep(&self, listener: Option<Arc<Listener>>) {
        let Connector {
            settings,
            locator,
            time,
            ..
        } = &*self.connector;
        // Called when a connection was opened or has broken: messages may have been missed.
        let missed = || {
            if let Some(listener) = &listener {
                listener.events.missed();
            }
        };
        // The longest pause is shorter than any call waits, so that each call sees at least one
        // attempt, and can report why there is no connection.
        let longest = Duration::from_millis(500).min(settings.patience());
        let mut backoff = Backoff::new(FIRST_PAUSE, longest);
        // After a connection that has ended at once. Who was woken by that has a quarter of the
        // time, and must not spend it on this.
        let mut pause = Backoff::new(FIRST_PAUSE, longest.min(settings.patience() / 8));
        loop {
            self.demand.notified().await;
            let deadline = time.after(settings.patience());
            let opened = self.connector.open(listener.as_ref(), deadline).await;
            let (connection, driver) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    locator.refresh_if_slot();
                    self.state.send_replace(State::Failed(error));
                    backoff.wait(time).await;
                    continue;
                }
            };
            backoff.reset();
            let began = time.now();
            self.state.send_replace(State::Ready(connection.clone()));
            missed();
            // Until it breaks, is discarded, or the server has moved.
            tokio::select! {
                biased;
                () = connection.drive(driver) => {}
                () = locator.moves_from(connection.address()) => {}
            }
            self.state.send_replace(State::Idle);
            missed();
            locator.refresh_if_slot();
            // Who was woken asks again at once. A server that ends each connection as soon as it is
            // open would be asked without a pause.
            match time.now() >= began + longest {
                true => pause.reset(),
                false => pause.wait(time).await,
            }
        }
    }
}

/// Marks the runtime as ended: it then drops its tasks, and this with them.
struct Gone(Arc<RuntimeConnection>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.state.send_replace(State::Gone);
    }
}
