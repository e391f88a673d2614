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

/// Like [`Counted`], for an operation that ends before the counter does.
#[derive(Debug)]
pub(crate) struct CountedHere<'a>(&'a Count);

impl InFlight {
    pub(crate) fn count(&self) -> Counted {
        self.0.begins();
        Counted(Arc::clone(&self.0))
    }

    pub(crate) fn count_here(&self) -> CountedHere<'_> {
        self.0.begins();
        CountedHere(&self.0)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.0.number.load(Ordering::Acquire) == 0
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn wait_idle(&self) {
        found(&self.0.idle, || self.is_idle().then_some(())).await;
    }
}

impl Count {
    fn begins(&self) {
        self.number.fetch_add(1, Ordering::AcqRel);
    }

    fn ends(&self) {
        if self.number.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.ends();
    }
}

impl Drop for CountedHere<'_> {
    fn drop(&mut self) {
        self.0.ends();
    }
}
