//! Where every operation of the store passes first.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::backend::BackendError;

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
    pub(super) fn set_unavailable(&self, unavailable: bool) {
        self.unavailable.send_replace(unavailable);
    }

    pub(super) fn set_delay(&self, delay: Option<Duration>) {
        *self.lock_delay() = delay;
    }

    /// Where every operation passes first.
    pub(super) async fn pass(&self) -> Result<(), BackendError> {
        let delay = *self.lock_delay();
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

    fn lock_delay(&self) -> MutexGuard<'_, Option<Duration>> {
        self.delay
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
