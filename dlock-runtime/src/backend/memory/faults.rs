//! What a test can make go wrong in the `memory:` store.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Shared;
use crate::backend::BackendError;

/// Makes a [`Memory`](super::Memory) store fail, for tests of code that uses
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
    shared: Arc<Shared>,
}

impl Faults {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Ends every lease on `key` (with its namespace), as if an operator had
    /// deleted it: its holders are told that it is lost, and the next waiter
    /// gets the lock. Returns whether anybody held it.
    pub fn take_away(&self, key: &str) -> bool {
        let owners = self.shared.store().take_away(key, Instant::now());
        self.shared.tell_losses(&owners);
        !owners.is_empty()
    }

    /// Makes every operation fail, those that wait included, until it is set
    /// to `false`. What is held stays held until its ttl has passed.
    pub fn set_unavailable(&self, unavailable: bool) {
        self.shared.faults.unavailable.send_replace(unavailable);
    }

    /// Makes every operation take effect this much later.
    pub fn set_delay(&self, delay: Option<Duration>) {
        *self.shared.faults.delay() = delay;
    }
}

#[derive(Debug)]
pub(super) struct FaultState {
    unavailable: watch::Sender<bool>,
    delay: Mutex<Option<Duration>>,
}

impl Default for FaultState {
    fn default() -> Self {
        Self {
            unavailable: watch::Sender::new(false),
            delay: Mutex::default(),
        }
    }
}

impl FaultState {
    /// Where every operation passes first.
    pub(super) async fn pass(&self) -> Result<(), BackendError> {
        let delay = *self.delay();
        if let Some(delay) = delay {
            if Handle::try_current().is_err() {
                return Err(BackendError::unavailable(
                    "no runtime to wait on for the delay",
                ));
            }
            tokio::time::sleep(delay).await;
        }
        if *self.unavailable.borrow() {
            return Err(BackendError::unavailable(
                "the memory store was made unavailable",
            ));
        }
        Ok(())
    }

    /// Resolves when the store is made unavailable.
    pub(super) async fn outage(&self) {
        let mut unavailable = self.unavailable.subscribe();
        // The sender lives as long as `self`.
        let _ = unavailable.wait_for(|unavailable| *unavailable).await;
    }

    fn delay(&self) -> MutexGuard<'_, Option<Duration>> {
        self.delay
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
