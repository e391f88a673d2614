//! The connections to one server: one for each runtime that calls.
//!
//! The client's own `ConnectionManager` (`redis` 1.8) is no help. It connects to one
//! address for good, and lets commands through before anything can be asked over a new
//! connection: neither the role of a master that has moved, nor a token counter that
//! must be lifted first. It cannot be told that a connection is silent. And it
//! reconnects on whichever runtime has seen the connection break.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::connection::Connection;
use super::connector::Connector;
use super::errors;
use super::listener::Listener;
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::store::Failure;
use crate::stores::per_runtime::PerRuntime;

/// The connections to one server. Dropping this closes them all.
pub(super) struct Connections {
    pub(super) connector: Arc<Connector>,
    by_runtime: Arc<PerRuntime<RuntimeConnection>>,
    /// Messages come over that of the manager's runtime. In a cluster they have one of
    /// their own, see [`Shards`](super::connection::Shards).
    listening: Arc<PerRuntime<RuntimeConnection>>,
    of_manager: Arc<RuntimeConnection>,
}

/// The connection of one runtime, made anew whenever it is needed and there is
/// none.
///
/// A task of that runtime keeps it. It, not a caller, makes the connection:
/// a caller's future may be dropped or left unpolled at any await, and the
/// others would wait for it.
pub(super) struct RuntimeConnection {
    pub(super) connector: Arc<Connector>,
    state: watch::Sender<State>,
    demand: Notify,
}

#[derive(Clone)]
enum State {
    /// There is no connection, or not yet.
    Idle,
    /// Until it was discarded.
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

    /// That of the runtime that this is called on.
    pub(super) fn here(&self) -> Result<Arc<RuntimeConnection>, Failure> {
        let here = self.by_runtime.here(|_| kept(&self.connector, None));
        here.map_err(Failure::refused)
    }

    /// A connection of this runtime, which is made if there is none.
    pub(super) async fn connection(&self, deadline: Deadline) -> Result<Connection, Failure> {
        self.here()?.connection(deadline).await
    }

    /// Closes every connection. What is asked of them from now on fails.
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
    /// The connection, if there is one.
    pub(super) fn ready(&self) -> Option<Connection> {
        match &*self.state.borrow() {
            State::Ready(connection) if connection.is_open() => Some(connection.clone()),
            _ => None,
        }
    }

    /// A connection will be needed: it is made if there is none.
    pub(super) fn prepare(&self) {
        if self.ready().is_none() {
            self.demand.notify_one();
        }
    }

    /// The connection, made if there is none.
    pub(super) async fn connection(&self, deadline: Deadline) -> Result<Connection, Failure> {
        if let Some(connection) = self.ready() {
            return Ok(connection);
        }
        // Seldom, and so not in the room of every call.
        Box::pin(self.next_connection(deadline)).await
    }

    async fn next_connection(&self, deadline: Deadline) -> Result<Connection, Failure> {
        let mut state = self.state.subscribe();
        let (mut asked, mut last) = (false, None);
        // By the manager's timers: until there is a connection it is not known
        // whether this runtime has any.
        let timeout = self.connector.time.sleep(deadline);
        tokio::pin!(timeout);
        loop {
            match &*state.borrow_and_update() {
                State::Ready(connection) if connection.is_open() => return Ok(connection.clone()),
                State::Gone => return Err(Failure::refused(errors::runtime_gone())),
                // A failure from before says nothing of now.
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
                // The sender is in here.
                _ = state.changed() => {}
                () = &mut timeout => {
                    return Err(last.map_or_else(Failure::not_sent, Failure::refused));
                }
            }
        }
    }
}

/// A connection, and the task that keeps it.
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
        // A connection was made or has broken: messages may have been missed.
        let missed = || {
            if let Some(listener) = &listener {
                listener.events.missed();
            }
        };
        // The longest is shorter than any call waits: each sees an attempt of its own
        // time, and can say why there is no connection.
        let longest = Duration::from_millis(500).min(settings.patience());
        let mut backoff = Backoff::new(Duration::from_millis(20), longest);
        loop {
            self.demand.notified().await;
            let deadline = time.after(settings.patience());
            let opened = self.connector.open(listener.as_ref(), deadline).await;
            let (connection, driver) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    locator.is_in_doubt();
                    self.state.send_replace(State::Failed(error));
                    backoff.wait(time).await;
                    continue;
                }
            };
            backoff.reset();
            self.state.send_replace(State::Ready(connection.clone()));
            missed();
            // Until it breaks, is discarded, or leads nowhere.
            tokio::select! {
                biased;
                () = connection.drive(driver) => {}
                () = locator.moves_from(connection.address()) => {}
            }
            self.state.send_replace(State::Idle);
            missed();
            locator.is_in_doubt();
        }
    }
}

/// A runtime that ends drops its tasks, and this with them.
struct Gone(Arc<RuntimeConnection>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.state.send_replace(State::Gone);
    }
}
