//! What a backend does by itself, on the manager's own runtime: it looks after
//! the waiters, and gives back what callers have left behind.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::core::Shared;
use super::errors;
use super::give_back::GiveBack;
use super::watch::keep_watch;
use crate::backend::BackendError;
use crate::backend::clock::{Clock, Deadline};
use crate::in_flight::InFlight;

/// The tasks of a backend. They end with this.
pub(super) struct Hub {
    manager: Handle,
    shared: Arc<Shared>,
    /// Counts what the server has not been told yet.
    unsettled: InFlight,
    tasks: InFlight,
    /// Told to finish what they have begun, and to leave it.
    stopping: CancellationToken,
    stopped: CancellationToken,
}

impl Hub {
    /// Starts the tasks on the current runtime.
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Self, BackendError> {
        let hub = Self {
            manager: Handle::try_current().map_err(|_| errors::outside_runtime())?,
            shared: Arc::clone(shared),
            unsettled: InFlight::default(),
            tasks: InFlight::default(),
            stopping: CancellationToken::new(),
            stopped: CancellationToken::new(),
        };
        hub.spawn(keep_watch(Arc::clone(shared), hub.stopping.clone()));
        Ok(hub)
    }

    /// Works from a `Drop`, and outside a runtime. If the backend has stopped,
    /// the lease ends by its ttl.
    pub(super) fn give_back(&self, what: GiveBack) {
        let (shared, stopping) = (Arc::clone(&self.shared), self.stopping.clone());
        self.spawn(what.run(shared, stopping, self.unsettled.count()));
    }

    /// Waits until the server has been told of all that was left behind, or
    /// that has run out.
    pub(super) async fn settle(&self) {
        self.unsettled.wait_idle().await;
    }

    /// Lets the tasks finish what they have begun, but no longer than `limit`.
    pub(super) async fn stop(&self, clock: &Clock, limit: Duration) {
        self.stopping.cancel();
        let _ = clock
            .bound(Deadline::after(limit), self.tasks.wait_idle())
            .await;
        self.stopped.cancel();
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let (counted, stopped) = (self.tasks.count(), self.stopped.clone());
        self.manager.spawn(async move {
            tokio::select! {
                () = work => {}
                () = stopped.cancelled() => {}
            }
            drop(counted);
        });
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stopping.cancel();
        self.stopped.cancel();
    }
}
