//! A flag that can be waited for. (Those who wait on a `watch` are woken in an order
//! of tokio's own chance.)

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Flag {
    is_set: AtomicBool,
    changed: Notify,
}

impl Flag {
    pub(crate) fn set(&self, is_set: bool) {
        self.is_set.store(is_set, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    pub(crate) async fn until_set(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_set() {
                return;
            }
            changed.await;
        }
    }
}
