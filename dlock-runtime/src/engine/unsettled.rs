//! Counts what the store must still be told of requests whose callers have gone, in all and for
//! each lock.

use std::sync::Arc;

use crate::in_flight::{Counted, InFlight};
use crate::sync::Mutex;
use crate::tables::HashMap;

/// Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct Unsettled {
    all: InFlight,
    /// The locks of which there is something.
    locks: Arc<Mutex<HashMap<Arc<str>, InFlight>>>,
}

/// Something that the store must be told, until this is dropped.
pub(super) struct Remains {
    unsettled: Unsettled,
    key: Arc<str>,
    counted: Option<[Counted; 2]>,
}

impl Unsettled {
    pub(super) fn count(&self, key: &Arc<str>) -> Remains {
        let of_all = self.all.count();
        let of_lock = self
            .locks
            .lock()
            .entry(Arc::clone(key))
            .or_default()
            .count();
        Remains {
            unsettled: self.clone(),
            key: Arc::clone(key),
            counted: Some([of_all, of_lock]),
        }
    }

    /// Waits until there is nothing.
    pub(super) async fn wait_idle(&self) {
        self.all.wait_idle().await;
    }

    /// Whether there is something of this lock.
    pub(super) fn has(&self, key: &str) -> bool {
        !self.all.is_idle() && self.locks.lock().contains_key(key)
    }

    /// Waits until there is nothing of this lock.
    pub(super) async fn wait_idle_of(&self, key: &str) {
        let of_lock = self.locks.lock().get(key).cloned();
        if let Some(of_lock) = of_lock {
            of_lock.wait_idle().await;
        }
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        // This wakes those who wait for it, which must not happen under the mutex.
        self.counted = None;
        let mut locks = self.unsettled.locks.lock();
        if locks.get(&self.key).is_some_and(InFlight::is_idle) {
            locks.remove(&self.key);
        }
    }
}
