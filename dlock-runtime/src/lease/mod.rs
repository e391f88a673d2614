//! Leases: their life from grant to release or loss, as this process sees it.
//!
//! The local deadline of a lease is *sent at* + ttl − drift margin on the monotonic clock. It is
//! counted from the last request that the store confirmed, so this process stops believing in a
//! lease before the store does.

mod keeper;
mod plan;
mod pulse;
mod release;
mod renewing;
mod state;
mod take;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::plan::Renewals;
pub(crate) use self::release::LeaseGuard;
pub(crate) use self::renewing::Renewable;
pub(crate) use self::state::{Follower, Lease};
pub(crate) use self::take::{Answer, NotGranted};

use self::keeper::Keeper;
use crate::backend::Backend;
use crate::executor::Executor;
use crate::in_flight::InFlight;
use crate::reach::Reach;
use crate::sync::Mutex;

/// All leases of one manager, and what they share: the store, the executor for background work, and
/// the keepers that renew them.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) executor: Executor,
    /// Why the store cannot be reached, when it cannot.
    pub(crate) reach: Reach,
    /// Whether the store gets requests in the order in which they are made.
    in_order: bool,
    /// Usually one keeper. The `memory:` store may need more: if the runtime on which it was
    /// connected has ended, or time is paused, the keeper runs on the runtime that takes the lease.
    ///
    /// Each has the runtime on which it works. One that has moved may be there beside another.
    keepers: Mutex<Vec<(runtime::Id, Arc<Keeper>)>>,
    /// Calls that wait for a lock.
    pub(crate) calls: InFlight,
    /// Leases that are being given back.
    returns: InFlight,
    pub(crate) shut_down: ShutDown,
}

/// Whether the shutdown of the manager has begun.
///
/// Each call looks at this several times. With a token alone, each look would take its mutex, which
/// all threads share.
#[derive(Debug, Default)]
pub(crate) struct ShutDown {
    has_begun: AtomicBool,
    begins: CancellationToken,
}

impl ShutDown {
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Waits until it begins.
    pub(crate) async fn begins(&self) {
        self.begins.cancelled().await;
    }

    fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
        self.begins.cancel();
    }
}

impl Leases {
    /// `backend` must have been started.
    pub(crate) fn new(backend: Arc<dyn Backend>, executor: Executor, reach: Reach) -> Self {
        Self {
            in_order: backend.capabilities().in_order,
            backend,
            executor,
            reach,
            keepers: Mutex::default(),
            calls: InFlight::default(),
            returns: InFlight::default(),
            shut_down: ShutDown::default(),
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.executor.clock().now()
    }

    /// Waits until every lease that is being given back has arrived or run out, and until the store
    /// has cleaned up after dropped and refused requests. Leases that `min_hold` keeps are left to
    /// the store, which expires them.
    pub(crate) async fn shutdown(&self) {
        self.shut_down.begin();
        // First: when the refused calls leave, they add releases and cleanups to wait for.
        self.wait_for_refused_calls().await;
        self.returns.wait_idle().await;
        self.backend.settle().await;
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        for (_, keeper) in self.keepers.lock().iter() {
            keeper.close();
        }
        let backend = Arc::clone(&self.backend);
        self.executor
            .spawn_release(async move { backend.stop().await });
    }
}
