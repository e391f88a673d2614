//! Counting what is under way, to wait until nothing is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts what is under way. A copy counts the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnderWay(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    number: AtomicUsize,
    none_left: Notify,
}

/// One that is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Count>);

impl UnderWay {
    pub(crate) fn count(&self) -> Counted {
        self.0.number.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(&self.0))
    }

    pub(crate) async fn none_left(&self) {
        loop {
            let none_left = self.0.none_left.notified();
            tokio::pin!(none_left);
            none_left.as_mut().enable();
            if self.0.number.load(Ordering::Acquire) == 0 {
                return;
            }
            none_left.await;
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0.number.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_left.notify_waiters();
        }
    }
}
