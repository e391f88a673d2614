//! One connection for each runtime that calls.
//!
//! The client's own `ConnectionManager` is no help: it reconnects on whichever
//! runtime has seen the connection break, and knows nothing of runtimes that end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::connection::{Connection, Opened};
use super::connector::{Connector, Listener};
use super::errors::{self, Place};
use crate::backend::{BackendError, BackendErrorKind};
use crate::deadline::{Backoff, Deadline};
use crate::stores::address::Address;
use crate::stores::per_runtime::PerRuntime;

/// The lanes of a backend. Dropping them closes every connection.
pub(super) struct Connections {
    connector: Arc<Connector>,
    lanes: Arc<PerRuntime<Lane>>,
}

/// The connection of one runtime, made anew whenever it is needed and there is
/// none.
///
/// A task of that runtime keeps it. It, not a caller, makes the connection:
/// a caller's future may be dropped or left unpolled at any await, and the
/// others would wait for it.
pub(super) struct Lane {
    connector: Arc<Connector>,
    state: watch::Sender<State>,
    demand: Notify,
}

#[derive(Clone)]
enum State {
    /// There is no connection, or not yet.
    Idle,
    Ready(Connection),
    /// The last attempt failed.
    Failed(BackendError),
    /// The runtime has ended.
    Gone,
}

/// The connection of an attempt, and where it is replaced.
pub(crate) struct Link {
    pub(super) lane: Arc<Lane>,
    pub(super) connection: Connection,
}

/// Why there is no connection.
pub(super) enum NoConnection {
    Failed(BackendError),
    /// The deadline has passed while one was being made.
    TooLate,
}

impl Connections {
    pub(super) fn new(connector: Arc<Connector>) -> Arc<Self> {
        Arc::new(Self {
            connector,
            lanes: PerRuntime::new(),
        })
    }

    /// The lane of the runtime that this is called on.
    pub(super) fn here(&self) -> Result<Arc<Lane>, BackendError> {
        self.lanes.here(|_| self.open(None))
    }

    /// The lane of the manager's own runtime. Messages come over it too, if
    /// somebody listens.
    pub(super) fn of_manager(&self, listener: Option<Arc<dyn Listener>>) -> Arc<Lane> {
        let manager = self.connector.clock.manager();
        self.lanes.of(manager, |_| self.open(listener))
    }

    fn open(
        &self,
        listener: Option<Arc<dyn Listener>>,
    ) -> (Arc<Lane>, impl Future<Output = ()> + use<>) {
        let lane = Arc::new(Lane {
            connector: Arc::clone(&self.connector),
            state: watch::Sender::new(State::Idle),
            demand: Notify::new(),
        });
        let keeper = Keeper {
            lane: Arc::clone(&lane),
            listener,
        };
        (lane, keeper.keep())
    }

    /// Whether a connection leads to another server.
    pub(super) fn any_not_to(&self, address: &Address) -> bool {
        self.lanes
            .all()
            .iter()
            .any(|lane| lane.leads_elsewhere(address).is_some())
    }

    /// Closes every connection that leads to another server: those who use it
    /// get another.
    pub(super) fn keep_only(&self, address: &Address) {
        for lane in self.lanes.all() {
            if let Some(connection) = lane.leads_elsewhere(address) {
                lane.discard(&connection);
            }
        }
    }

    /// Closes every connection. What is asked of them from now on fails.
    pub(super) fn close(&self) {
        self.lanes.close();
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.close();
    }
}

impl Lane {
    pub(super) fn connector(&self) -> &Arc<Connector> {
        &self.connector
    }

    /// The connection, if there is one.
    pub(super) fn ready(&self) -> Option<Connection> {
        match &*self.state.borrow() {
            State::Ready(connection) => Some(connection.clone()),
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
    pub(super) async fn connection(&self, deadline: Deadline) -> Result<Connection, NoConnection> {
        if let Some(connection) = self.ready() {
            return Ok(connection);
        }
        // Seldom, and so not in the room of every call.
        Box::pin(self.next_connection(deadline)).await
    }

    async fn next_connection(&self, deadline: Deadline) -> Result<Connection, NoConnection> {
        let mut state = self.state.subscribe();
        let mut last = match &*state.borrow_and_update() {
            State::Ready(connection) => return Ok(connection.clone()),
            State::Gone => return Err(NoConnection::Failed(errors::runtime_gone())),
            // A failure from before says nothing of now.
            State::Failed(_) | State::Idle => None,
        };
        // By the manager's timers: until there is a connection it is not known
        // whether this runtime has any.
        let timeout = self.connector.clock.sleep(deadline);
        tokio::pin!(timeout);
        loop {
            self.demand.notify_one();
            tokio::select! {
                biased;
                changed = state.changed() => {
                    if changed.is_err() {
                        return Err(NoConnection::Failed(errors::runtime_gone()));
                    }
                }
                () = &mut timeout => {
                    return Err(last.map_or(NoConnection::TooLate, NoConnection::Failed));
                }
            }
            match &*state.borrow_and_update() {
                State::Ready(connection) => return Ok(connection.clone()),
                State::Gone => return Err(NoConnection::Failed(errors::runtime_gone())),
                State::Failed(error) if error.kind() != BackendErrorKind::Unavailable => {
                    return Err(NoConnection::Failed(error.clone()));
                }
                State::Failed(error) => last = Some(error.clone()),
                State::Idle => {}
            }
        }
    }

    fn leads_elsewhere(&self, address: &Address) -> Option<Connection> {
        match &*self.state.borrow() {
            State::Ready(connection) if connection.address() != address => Some(connection.clone()),
            _ => None,
        }
    }

    /// Replaces a connection that does not answer or leads to the wrong server.
    pub(super) fn discard(&self, connection: &Connection) {
        self.state.send_if_modified(|state| {
            let current = matches!(state, State::Ready(ready) if ready.id() == connection.id());
            if current {
                *state = State::Idle;
            }
            current
        });
        connection.discard();
    }
}

impl Link {
    pub(super) fn new(lane: Arc<Lane>, connection: Connection) -> Self {
        Self { lane, connection }
    }

    pub(super) fn place(&self) -> &Place {
        &self.lane.connector().place
    }

    /// The connection is of no use any more.
    pub(super) fn discard(&self) {
        self.lane.discard(&self.connection);
    }
}

/// The task of a lane.
struct Keeper {
    lane: Arc<Lane>,
    listener: Option<Arc<dyn Listener>>,
}

impl Keeper {
    async fn keep(self) {
        let connector = &self.lane.connector;
        let mut backoff = new_backoff(connector.settings.patience());
        loop {
            self.lane.demand.notified().await;
            let deadline = Deadline::after(connector.settings.patience());
            match connector.open(self.listener.as_ref(), deadline).await {
                Ok(opened) => {
                    backoff = new_backoff(connector.settings.patience());
                    self.drive(opened).await;
                    connector.is_in_doubt();
                }
                Err(error) => {
                    connector.is_in_doubt();
                    self.lane.state.send_replace(State::Failed(error));
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// Serves a connection until it breaks, is discarded, or leads nowhere.
    async fn drive(&self, opened: Opened) {
        let Opened { connection, driver } = opened;
        self.lane
            .state
            .send_replace(State::Ready(connection.clone()));
        if let Some(listener) = &self.listener {
            listener.missed();
        }
        tokio::select! {
            biased;
            () = connection.drive(driver) => {}
            () = self.lane.connector.moves_from(connection.address()) => {}
        }
        self.lane.discard(&connection);
        if let Some(listener) = &self.listener {
            listener.missed();
        }
    }
}

impl Drop for Keeper {
    /// A runtime that ends drops its tasks, and this with them.
    fn drop(&mut self) {
        self.lane.state.send_replace(State::Gone);
    }
}

/// The longest pause is shorter than any call waits: each sees an attempt of its own
/// time, and can say why there is no connection.
fn new_backoff(patience: Duration) -> Backoff {
    Backoff::new(
        Duration::from_millis(20),
        Duration::from_millis(500).min(patience),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::super::locate::Locator;
    use super::super::settings::Settings;
    use super::*;
    use crate::deadline::ManagerClock;
    use crate::stores::tier::FoundTier;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    }

    #[test]
    fn a_runtime_that_ends_takes_its_lane_with_it() {
        let manager = runtime();
        let settings = Settings::of_server("redis://127.0.0.1:1").expect("a valid URL");
        let address = settings.address().cloned().expect("an address");
        let connections = {
            let _entered = manager.enter();
            Connections::new(Arc::new(Connector {
                locator: Locator::At(address),
                place: settings.place(),
                settings,
                clock: ManagerClock::of_this_runtime().expect("a runtime"),
                highest_token: AtomicU64::new(0),
                tokens: FoundTier::unknown(),
            }))
        };
        let lanes = || connections.lanes.all().len();
        let kept = runtime();
        let lane = kept.block_on(async { connections.here() });
        for _ in 0..3 {
            let ends = runtime();
            let lane = ends.block_on(async { connections.here() }).expect("a lane");
            assert_eq!(lanes(), 2);
            drop(ends);
            assert!(matches!(&*lane.state.borrow(), State::Gone));
        }
        assert_eq!(lanes(), 1);
        let again = kept.block_on(async { connections.here() });
        assert!(Arc::ptr_eq(&lane.expect("a lane"), &again.expect("a lane")));
    }
}
