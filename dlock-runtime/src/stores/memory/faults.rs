//! What the clones of a `memory:` store share, and the faults that a test can inject there.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::store::Store;
use crate::backend::losses::Losses;
use crate::backend::{BackendError, Owner};
use crate::sync::{Mutex, MutexGuard};

/// Injects faults into a [`Memory`](super::Memory) store, for tests of code that uses
/// locks. Works on all clones of the store, from any thread.
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// use dlock::backend::memory::Memory;
/// use dlock::{Config, LockError, LockManager};
///
/// let memory = Memory::new();
/// let manager = LockManager::connect(Config::with_backend(memory.clone())).await?;
/// memory.faults().set_unavailable(true);
/// let refused = manager.lock("stock:42").acquire().await;
/// assert!(matches!(refused, Err(LockError::Unavailable { .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Faults {
    pub(super) shared: Arc<Shared>,
}

impl Faults {
    /// Ends every lease on `key` (with its namespace), as if an operator had
    /// deleted it: its holders are told that it is lost, and the next waiter
    /// gets the lock. Returns whether anybody held it.
    pub fn take_away(&self, key: &str) -> bool {
        let owners = self.shared.store().take_away(key, Instant::now());
        self.shared.tell_losses(&owners);
        !owners.is_empty()
    }

    /// Makes every operation fail, including those that wait, until it is set to `false`. Leases
    /// that are held stay held until their ttl has passed.
    pub fn set_unavailable(&self, unavailable: bool) {
        let injected = &self.shared.injected;
        injected.send_modify(|injected| injected.unavailable = unavailable);
    }

    /// Delays every operation by this much before it takes effect.
    pub fn set_delay(&self, delay: Option<Duration>) {
        let injected = &self.shared.injected;
        injected.send_modify(|injected| injected.delay = delay);
    }
}

/// What the clones of a store share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    store: Mutex<Store>,
    clones: Mutex<Vec<Weak<Losses>>>,
    pub(super) injected: watch::Sender<Injected>,
}

/// The faults that a test has injected.
#[derive(Debug, Default)]
pub(super) struct Injected {
    pub(super) unavailable: bool,
    pub(super) delay: Option<Duration>,
}

impl Shared {
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }

    /// From now on, this clone receives losses.
    pub(super) fn tells(&self, losses: &Arc<Losses>) {
        let mut clones = self.clones.lock();
        clones.retain(|clone| clone.strong_count() > 0);
        clones.push(Arc::downgrade(losses));
    }

    pub(super) fn tell_losses(&self, owners: &[Owner]) {
        for losses in self.clones.lock().iter().filter_map(Weak::upgrade) {
            losses.tell(owners.iter().copied());
        }
    }

    /// Every operation calls this first: applies the injected faults.
    pub(super) async fn pass(&self) -> Result<(), BackendError> {
        let delay = self.injected.borrow().delay;
        if let Some(delay) = delay {
            if Handle::try_current().is_err() {
                return Err(BackendError::unavailable(
                    "no runtime to wait on for the delay",
                ));
            }
            tokio::time::sleep(delay).await;
        }
        if self.injected.borrow().unavailable {
            return Err(BackendError::unavailable(
                "the memory store was made unavailable",
            ));
        }
        Ok(())
    }

    /// Resolves when the store is made unavailable.
    pub(super) async fn outage(&self) {
        let mut injected = self.injected.subscribe();
        // Cannot fail: the sender lives as long as `self`.
        let _ = injected.wait_for(|injected| injected.unavailable).await;
    }
}
