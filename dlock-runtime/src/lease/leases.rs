//! What all leases of one manager share: the store, where work goes on by itself,
//! and who keeps them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::runtime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Keeper;
use crate::backend::{Backend, Owner};
use crate::executor::Executor;
use crate::in_flight::InFlight;
use crate::reach::Reach;

/// All leases of one manager.
#[derive(Debug)]
pub(crate) struct Leases {
    backend: Arc<dyn Backend>,
    executor: Executor,
    reach: Reach,
    /// Whether the store gets requests in the order in which they are made.
    in_order: bool,
    /// One keeper; for the `memory:` store, one for each runtime that takes
    /// leases, since there every runtime has a clock of its own.
    keepers: Mutex<HashMap<runtime::Id, Arc<Keeper>>>,
    /// Leases on their way back.
    returns: InFlight,
    shutdown: CancellationToken,
}

impl Leases {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        executor: Executor,
        reach: Reach,
        in_order: bool,
    ) -> Self {
        Self {
            backend,
            executor,
            reach,
            in_order,
            keepers: Mutex::default(),
            returns: InFlight::default(),
            shutdown: CancellationToken::new(),
        }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Why the store cannot be reached, when it cannot.
    pub(crate) fn reach(&self) -> &Reach {
        &self.reach
    }

    pub(super) fn in_order(&self) -> bool {
        self.in_order
    }

    pub(super) fn returns(&self) -> &InFlight {
        &self.returns
    }

    /// Cancelled when the manager is shut down.
    pub(crate) fn shutdown_token(&self) -> &CancellationToken {
        &self.shutdown
    }

    pub(crate) fn now(&self) -> Instant {
        self.executor.clock().now()
    }

    /// Ends the leases that the store says are gone.
    pub(super) fn taken_away(&self, owners: &HashSet<Owner>) {
        let keepers: Vec<_> = self.keepers().values().cloned().collect();
        for keeper in keepers {
            keeper.taken_away(owners);
        }
    }

    /// Waits until every lease on its way back has arrived or run out, and
    /// likewise whatever dropped requests left in the store. Leases held back by
    /// `min_hold` are left to the store to expire.
    pub(crate) async fn shutdown(&self) {
        self.shutdown.cancel();
        self.returns.wait_idle().await;
        self.backend.settle().await;
    }

    pub(super) fn keepers(&self) -> MutexGuard<'_, HashMap<runtime::Id, Arc<Keeper>>> {
        // No code of ours panics while it holds this.
        self.keepers
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        for keeper in self.keepers().values() {
            keeper.close();
        }
        let backend = Arc::clone(&self.backend);
        self.executor
            .spawn_release(async move { backend.stop().await });
    }
}
