//! Counts what the store must still be told of requests whose callers have gone, in all and for
//! each lock.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::in_flight::{Counted, InFlight};
use crate::sync::Mutex;
use crate::tables::HashMap;

/// Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct Unsettled {
    all: InFlight,
    /// The locks of which there is something. What comes is counted by the last of a lock's
    /// counters: whoever waits does not wait for what comes later.
    locks: Arc<Mutex<HashMap<Arc<str>, Vec<InFlight>>>>,
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
        let of_lock = {
            let mut locks = self.locks.lock();
            let counters = locks.entry(Arc::clone(key)).or_default();
            let last = counters.pop().unwrap_or_default();
            let counted = last.count();
            counters.push(last);
            counted
        };
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

    /// Waits until what there is of this lock now is gone. `None`: there is nothing.
    pub(super) fn of(&self, key: &str) -> Option<BoxFuture<'static, ()>> {
        if self.all.is_idle() {
            return None;
        }
        let earlier = {
            let mut locks = self.locks.lock();
            let counters = locks.get_mut(key)?;
            let earlier = counters.clone();
            if counters.last().is_some_and(|last| !last.is_idle()) {
                counters.push(InFlight::default());
            }
            earlier
        };
        Some(Box::pin(async move {
            for counter in earlier {
                counter.wait_idle().await;
            }
        }))
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        // This wakes those who wait for it, which must not happen under the mutex.
        self.counted = None;
        let mut locks = self.unsettled.locks.lock();
        let Some(counters) = locks.get_mut(&self.key) else {
            return;
        };
        if counters.iter().all(InFlight::is_idle) {
            locks.remove(&self.key);
        } else if let Some(last) = counters.pop() {
            counters.retain(|counter| !counter.is_idle());
            counters.push(last);
        }
    }
}
