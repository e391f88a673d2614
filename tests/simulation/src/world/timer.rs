//! Timers of a process.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{At, Process};

/// A timer goes off so much late at the most, as tokio's do.
const LATE: Duration = Duration::from_millis(1);

pub(super) struct Timer {
    process: Arc<Process>,
    /// By the process's clock.
    deadline: Duration,
    /// Whom to wake, once it is set.
    waker: Option<Arc<Mutex<Option<Waker>>>>,
}

impl Timer {
    pub(super) fn new(process: Arc<Process>, deadline: Duration) -> Self {
        Self {
            process,
            deadline,
            waker: None,
        }
    }

    /// When it goes off. Far ahead there is nothing to be late for.
    fn goes_off(&self) -> At {
        let world = self.process.world();
        self.process.clock().when(self.deadline) + world.between(Duration::ZERO, LATE)
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.process.shows() >= self.deadline {
            return Poll::Ready(());
        }
        match &self.waker {
            Some(set) => {
                let mut known = set.lock().unwrap_or_else(PoisonError::into_inner);
                *known = Some(context.waker().clone());
            }
            None => {
                let set = Arc::new(Mutex::new(Some(context.waker().clone())));
                self.waker = Some(Arc::clone(&set));
                self.process.world().at(self.goes_off(), move || {
                    let waker = set.lock().unwrap_or_else(PoisonError::into_inner).take();
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                });
            }
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(set) = &self.waker {
            let _dropped = set.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}
