//! Deadlines by the machine's clock.
//!
//! A store elsewhere knows nothing of a runtime whose time a test has paused:
//! there, tokio's timers go off as soon as the runtime has nothing to do but
//! wait for the network. So in such a runtime a deadline is kept by the timers
//! of the manager's own.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use crate::clock::time_is_real;

/// When a call must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

/// The deadline has passed.
#[derive(Debug)]
pub struct Elapsed;

/// When a command is sent, and until when its answer is waited for. To look at
/// the clock costs: it is done once for each command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) at: Instant,
    pub(crate) deadline: Deadline,
}

impl Sending {
    /// Sent now.
    pub(crate) fn now(deadline: Deadline) -> Self {
        Self {
            at: Instant::now(),
            deadline,
        }
    }

    /// So much later than it was sent.
    pub(crate) fn after(self, wait: Duration) -> Deadline {
        Deadline::from(self.at, wait)
    }
}

impl Deadline {
    /// So much later than now.
    pub fn after(wait: Duration) -> Self {
        Self::from(Instant::now(), wait)
    }

    /// So much later than `start`.
    pub fn from(start: Instant, wait: Duration) -> Self {
        // Far enough for any timeout that overflows.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        Self(start.checked_add(wait).unwrap_or_else(|| start + CENTURY))
    }

    /// As an instant.
    pub fn at(self) -> Instant {
        self.0
    }

    /// Not in any program's life.
    pub(crate) fn never() -> Self {
        Self::after(Duration::MAX)
    }

    /// This, or so much later than now if that is sooner.
    pub fn within(self, wait: Duration) -> Self {
        self.min(Self::after(wait))
    }

    /// How much time is left, by the machine's clock.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether there is none.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}

/// Timers that go by the machine's clock.
#[derive(Clone, Debug)]
pub(crate) struct ManagerClock {
    /// The manager's runtime, whose time nobody pauses.
    manager: Handle,
}

impl ManagerClock {
    /// The clock of the runtime that this is called on.
    pub(crate) fn of_this_runtime() -> Option<Self> {
        Some(Self {
            manager: Handle::try_current().ok()?,
        })
    }

    /// The manager's runtime.
    pub(crate) fn manager(&self) -> &Handle {
        &self.manager
    }

    /// Ends the future at the deadline.
    pub(crate) async fn bound<F: Future>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        if time_is_real(Instant::now()) {
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
    pub(crate) async fn sleep(&self, deadline: Deadline) {
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

/// The timer of commands that are sent one after the other. To set one and take
/// it back for each of them would cost more than to let it go off too early, once
/// in a while, and to set it anew.
#[derive(Debug)]
pub(crate) struct Timer {
    /// Where it is at home: timers are of one runtime, and end with it.
    runtime: Id,
    /// Only a runtime of one thread lets a test pause its time.
    pausable: bool,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer {
    /// A timer for the runtime that this is called on.
    pub(crate) fn of_this_runtime() -> Option<Self> {
        let runtime = Handle::try_current().ok()?;
        Some(Self {
            runtime: runtime.id(),
            pausable: runtime.runtime_flavor() == RuntimeFlavor::CurrentThread,
            sleep: None,
        })
    }

    /// Ends the future at the deadline; what was sent at `sent` was so just now.
    pub(crate) async fn bound<F: Future>(
        &mut self,
        clock: &ManagerClock,
        sent: Instant,
        deadline: Deadline,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        if !self.is_of_use(sent) {
            return clock.bound(deadline, future).await;
        }
        let mut future = pin!(future);
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            let sleep = self.sleep.get_or_insert_with(|| {
                let sleep = tokio::time::sleep_until(deadline.0.into());
                Box::pin(sleep)
            });
            if sleep.deadline().into_std() > deadline.0 {
                sleep.as_mut().reset(deadline.0.into());
            }
            loop {
                ready!(sleep.as_mut().poll(context));
                if deadline.has_passed() {
                    return Poll::Ready(Err(Elapsed));
                }
                sleep.as_mut().reset(deadline.0.into());
            }
        })
        .await
    }

    /// Whether it can be set here. Once it is, it may be looked at from anywhere.
    fn is_of_use(&self, now: Instant) -> bool {
        let at_home = || Handle::try_current().is_ok_and(|here| here.id() == self.runtime);
        (self.sleep.is_some() || at_home()) && (!self.pausable || time_is_real(now))
    }
}

/// The pauses between attempts: doubled each time, up to a bound, and never the
/// same for two callers, so that those who failed together do not return
/// together.
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        pause.mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_timer_keeps_each_deadline() {
        use std::future::{pending, ready};
        let clock = ManagerClock::of_this_runtime().expect("a runtime");
        let mut timer = Timer::of_this_runtime().expect("a runtime");
        // Later than the one before, and sooner.
        for wait in [5, 60_000, 20, 60_000, 5].map(Duration::from_millis) {
            let now = Instant::now();
            let deadline = Deadline::from(now, wait);
            if wait > Duration::from_secs(1) {
                let answer = timer.bound(&clock, now, deadline, ready(())).await;
                assert!(answer.is_ok(), "an answer that is there counts");
                // Sets it.
                let mut waits = pin!(timer.bound(&clock, now, deadline, pending::<()>()));
                let soon = tokio::time::timeout(Duration::from_millis(1), waits.as_mut());
                assert!(soon.await.is_err(), "ended before its deadline");
            } else {
                let end = timer.bound(&clock, now, deadline, pending::<()>()).await;
                assert!(end.is_err());
                assert!(now.elapsed() >= wait, "ended after {:?}", now.elapsed());
            }
        }
    }

    #[tokio::test]
    async fn a_deadline_ends_a_future() {
        let clock = ManagerClock::of_this_runtime().expect("a runtime");
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
        let clock = ManagerClock {
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

            let start = Instant::now();
            let mut timer = Timer::of_this_runtime().expect("a runtime");
            let deadline = Deadline::from(start, wait);
            let end = timer.bound(&clock, start, deadline, std::future::pending::<()>());
            assert!(end.await.is_err());
            assert!(start.elapsed() >= wait, "ended after {:?}", start.elapsed());
        });
    }
}
