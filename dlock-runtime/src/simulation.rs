//! The simulated process, which the simulator passes in. Not for users.
//!
//! While a simulated process runs on this thread, it provides the time, random numbers and timers,
//! and it runs the manager's tasks. So the runtime under test is the one that users have, including
//! its engine. On a thread without a process, everything works as usual.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::simulated::Simulated;

thread_local! {
    static RUNNING: RefCell<Option<Arc<dyn Simulated>>> = const { RefCell::new(None) };
}

/// Runs `work` as a part of this process.
pub fn enter<R>(process: &Arc<dyn Simulated>, work: impl FnOnce() -> R) -> R {
    struct Leave(Option<Arc<dyn Simulated>>);
    impl Drop for Leave {
        fn drop(&mut self) {
            RUNNING.set(self.0.take());
        }
    }
    let _leave = Leave(RUNNING.replace(Some(Arc::clone(process))));
    work()
}

/// The process that runs on this thread.
#[must_use]
pub fn running() -> Option<Arc<dyn Simulated>> {
    RUNNING.with_borrow(Clone::clone)
}

/// The time by the clock of the running process.
pub(crate) fn now() -> Instant {
    running().map_or_else(Instant::now, |process| process.now().into())
}

pub(crate) fn chance() -> f64 {
    running().map_or_else(fastrand::f64, |process| process.draw())
}

/// A timer of the running process.
pub fn sleep(duration: Duration) -> Sleep {
    match running() {
        Some(process) => {
            // As in tokio: far enough for any program.
            const YEARS: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
            let now = Instant::from_std(process.now());
            let deadline = now.checked_add(duration).unwrap_or(now + YEARS);
            Sleep::simulated(process, deadline)
        }
        None => Sleep::Tokio {
            sleep: tokio::time::sleep(duration),
        },
    }
}

pub(crate) fn sleep_until(deadline: Instant) -> Sleep {
    match running() {
        Some(process) => Sleep::simulated(process, deadline),
        None => Sleep::Tokio {
            sleep: tokio::time::sleep_until(deadline),
        },
    }
}

pin_project! {
    /// A timer.
    #[project = Projected]
    pub enum Sleep {
        /// Of a runtime.
        Tokio {
            #[pin]
            sleep: tokio::time::Sleep,
        },
        /// Of a simulated process.
        Simulated {
            process: Arc<dyn Simulated>,
            deadline: Instant,
            timer: Pin<Box<dyn Future<Output = ()> + Send>>,
        },
    }
}

impl Sleep {
    fn simulated(process: Arc<dyn Simulated>, deadline: Instant) -> Self {
        Self::Simulated {
            timer: process.sleep_until(deadline.into_std()),
            process,
            deadline,
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match self {
            Self::Tokio { sleep } => sleep.deadline(),
            Self::Simulated { deadline, .. } => *deadline,
        }
    }

    pub(crate) fn reset(self: Pin<&mut Self>, to: Instant) {
        match self.project() {
            Projected::Tokio { sleep } => sleep.reset(to),
            Projected::Simulated {
                process,
                deadline,
                timer,
            } => {
                *deadline = to;
                *timer = process.sleep_until(to.into_std());
            }
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project() {
            Projected::Tokio { sleep } => sleep.poll(cx),
            Projected::Simulated { timer, .. } => timer.as_mut().poll(cx),
        }
    }
}
