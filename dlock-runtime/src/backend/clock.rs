//! Deadlines by the machine's clock.
//!
//! A store elsewhere knows nothing of a runtime whose time a test has paused:
//! there, tokio's timers go off as soon as the runtime has nothing to do but
//! wait for the network. So in such a runtime a deadline is kept by the timers
//! of the manager's own.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// When a call must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline(Instant);

/// The deadline has passed.
#[derive(Debug)]
pub(super) struct Elapsed;

impl Deadline {
    /// So much later than now.
    pub(super) fn after(wait: Duration) -> Self {
        Self::from(Instant::now(), wait)
    }

    pub(super) fn from(start: Instant, wait: Duration) -> Self {
        // Far enough for any timeout that overflows.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        Self(start.checked_add(wait).unwrap_or_else(|| start + CENTURY))
    }

    /// Not in any program's life.
    #[allow(dead_code, reason = "not every store waits for so long")]
    pub(super) fn never() -> Self {
        Self::after(Duration::MAX)
    }

    /// This, or so much later than now if that is sooner.
    pub(super) fn within(self, wait: Duration) -> Self {
        self.min(Self::after(wait))
    }

    pub(super) fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub(super) fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}

/// Timers that go by the machine's clock.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// The manager's runtime, whose time nobody pauses.
    manager: Handle,
}

impl Clock {
    /// The clock of the runtime that this is called on.
    pub(super) fn of_this_runtime() -> Option<Self> {
        Some(Self {
            manager: Handle::try_current().ok()?,
        })
    }

    /// Ends the future at the deadline.
    pub(super) async fn bound<F: Future>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        if time_is_real() {
            return tokio::time::timeout_at(deadline.0.into(), future)
                .await
                .map_err(|_| Elapsed);
        }
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = Box::pin(self.sleep(deadline)) => Err(Elapsed),
        }
    }

    /// Waits for the deadline on the manager's runtime, so that the caller's
    /// needs no timers.
    pub(super) async fn sleep(&self, deadline: Deadline) {
        struct AbortOnDrop(JoinHandle<()>);
        impl Drop for AbortOnDrop {
            fn drop(&mut self) {
                self.0.abort();
            }
        }
        let timer = tokio::time::sleep_until;
        let mut sleep = AbortOnDrop(self.manager.spawn(async move {
            timer(deadline.0.into()).await;
        }));
        // An error means that the manager has ended, and with it all waiting.
        let _ = (&mut sleep.0).await;
    }
}

/// Whether tokio's clock is the machine's. It is not while a test has paused
/// it, nor ever after in that runtime.
fn time_is_real() -> bool {
    let before = Instant::now();
    let shown = tokio::time::Instant::now().into_std();
    before <= shown && shown <= Instant::now()
}

/// The pauses between attempts: doubled each time, up to a bound, and never the
/// same for two callers, so that those who failed together do not return
/// together.
pub(super) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        pause.mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_deadline_ends_a_future() {
        let clock = Clock::of_this_runtime().expect("a runtime");
        let soon = Deadline::after(Duration::from_millis(5));
        assert!(
            clock
                .bound(soon, std::future::pending::<()>())
                .await
                .is_err()
        );
        assert!(soon.has_passed());
        assert!(
            clock.bound(soon, async {}).await.is_ok(),
            "an answer that is there counts"
        );
    }

    /// With tokio's timer this would end at once, as nothing else is to be done.
    #[test]
    fn paused_time_does_not_shorten_a_deadline() {
        let manager = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let clock = Clock {
            manager: manager.handle().clone(),
        };
        let paused = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        paused.block_on(async {
            let wait = Duration::from_millis(50);
            let start = Instant::now();
            let end = clock
                .bound(Deadline::after(wait), std::future::pending::<()>())
                .await;
            assert!(end.is_err());
            assert!(start.elapsed() >= wait, "ended after {:?}", start.elapsed());
        });
    }
}
