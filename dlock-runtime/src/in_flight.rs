//! Counts operations in flight, so that a shutdown can wait until there are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::sync::found;

/// Counts operations in flight. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    number: AtomicUsize,
    idle: Notify,
}

/// One operation in flight, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Count>);

impl InFlight {
    pub(crate) fn count(&self) -> Counted {
        self.0.number.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(&self.0))
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn wait_idle(&self) {
        let is_idle = || (self.0.number.load(Ordering::Acquire) == 0).then_some(());
        found(&self.0.idle, is_idle).await;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.number.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
