//! Faults that a test can inject into the `memory:` store.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::shared::Shared;

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
