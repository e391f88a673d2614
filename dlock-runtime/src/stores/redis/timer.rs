//! When a command was sent, and the timer of its answer.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::time::Sleep;

use crate::clock::time_is_real;
use crate::deadline::{Deadline, Elapsed};
use crate::engine::time::Time;

/// When a command is sent, and until when its answer is awaited. Reading the clock costs time, so
/// it is read once for each command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) at: Instant,
    pub(super) deadline: Deadline,
}

impl Sending {
    /// Sent now.
    pub(super) fn now(deadline: Deadline) -> Self {
        Self {
            at: Instant::now(),
            deadline,
        }
    }

    /// Sent now, by somebody who waits for as long as an answer may take.
    pub(super) fn without_deadline() -> Self {
        let at = Instant::now();
        Self {
            at,
            deadline: Deadline::from(at, Duration::MAX),
        }
    }

    /// This much later than it was sent.
    pub(super) fn after(self, wait: Duration) -> Deadline {
        Deadline::from(self.at, wait)
    }
}

/// A timer for commands that are sent one after the other. To create a timer for each command and
/// drop it would cost more than to keep one that sometimes fires too early and is then reset.
#[derive(Debug)]
pub(super) struct Timer {
    /// The runtime of the timer: timers belong to one runtime, and end with it.
    runtime: Id,
    /// A test can pause the time only of a current-thread runtime.
    pausable: bool,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// A timer for the calling runtime.
    pub(super) fn of_this_runtime() -> Option<Self> {
        let runtime = Handle::try_current().ok()?;
        Some(Self {
            runtime: runtime.id(),
            pausable: runtime.runtime_flavor() == RuntimeFlavor::CurrentThread,
            sleep: None,
        })
    }

    /// Ends the future at the deadline. `sent` must be now, or very recent.
    pub(super) async fn bound<F: Future>(
        &mut self,
        time: &Time,
        sent: Instant,
        deadline: Deadline,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        if !self.is_of_use(sent) {
            return time.bound(deadline, future).await;
        }
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            let sleep = self.sleep.get_or_insert_with(|| {
                let sleep = tokio::time::sleep_until(deadline.at().into());
                Box::pin(sleep)
            });
            if sleep.deadline().into_std() > deadline.at() {
                sleep.as_mut().reset(deadline.at().into());
            }
            loop {
                ready!(sleep.as_mut().poll(context));
                if deadline.has_passed() {
                    return Poll::Ready(Err(Elapsed));
                }
                sleep.as_mut().reset(deadline.at().into());
            }
        })
        .await
    }

    /// Whether the timer can be used here. Once it is created, it may be polled from anywhere.
    fn is_of_use(&self, now: Instant) -> bool {
        let at_home = || Handle::try_current().is_ok_and(|here| here.id() == self.runtime);
        (self.sleep.is_some() || at_home()) && (!self.pausable || time_is_real(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_timer_keeps_each_deadline() {
        use std::future::{pending, ready};
        let time = Time::of_the_machine(Handle::current());
        let mut timer = Timer::of_this_runtime().expect("a runtime");
        // Deadlines later and earlier than the one before.
        for wait in [5, 60_000, 20, 60_000, 5].map(Duration::from_millis) {
            let now = Instant::now();
            let deadline = Deadline::from(now, wait);
            if wait > Duration::from_secs(1) {
                let answer = timer.bound(&time, now, deadline, ready(())).await;
                assert!(answer.is_ok(), "an answer that is there counts");
                // This sets the timer.
                let mut waits = pin!(timer.bound(&time, now, deadline, pending::<()>()));
                let soon = tokio::time::timeout(Duration::from_millis(1), waits.as_mut());
                assert!(soon.await.is_err(), "ended before its deadline");
            } else {
                let end = timer.bound(&time, now, deadline, pending::<()>()).await;
                assert!(end.is_err());
                assert!(now.elapsed() >= wait, "ended after {:?}", now.elapsed());
            }
        }
    }

    /// With tokio's timer this would end at once, since paused time advances when all tasks are
    /// idle.
    #[test]
    fn paused_time_does_not_shorten_a_deadline() {
        let manager = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let time = Time::of_the_machine(manager.handle().clone());
        let paused = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        paused.block_on(async {
            let wait = Duration::from_millis(50);
            let start = Instant::now();
            let end = time
                .bound(Deadline::after(wait), std::future::pending::<()>())
                .await;
            assert!(end.is_err());
            assert!(start.elapsed() >= wait, "ended after {:?}", start.elapsed());

            let start = Instant::now();
            let mut timer = Timer::of_this_runtime().expect("a runtime");
            let deadline = Deadline::from(start, wait);
            let end = timer.bound(&time, start, deadline, std::future::pending::<()>());
            assert!(end.await.is_err());
            assert!(start.elapsed() >= wait, "ended after {:?}", start.elapsed());
        });
    }
}
