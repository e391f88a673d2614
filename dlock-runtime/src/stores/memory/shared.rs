//! The state that the clones of a store share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use super::store::Store;
use crate::backend::losses::Losses;
use crate::backend::{BackendError, Owner};
use crate::sync::{Mutex, MutexGuard};

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
