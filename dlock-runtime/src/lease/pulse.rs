//! Whether this process stood still while it waited for an answer.
//!
//! A lease can be over by the time its grant is seen for two reasons. The store may be slower than
//! the ttl: then repeating the request does not help, and the ttl has to be raised. Or this process
//! did not run, because the caller's runtime was blocked or the whole process was paused: then the
//! next request may well be answered in time. The delay of the answer does not tell the two apart,
//! but a timer that fired just as late does.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use crate::executor::Executor;

/// How often the pulse is checked within a ttl.
const BEATS_PER_TTL: u32 = 8;

/// The pulse of the task that polls a future.
pub(super) struct Pulse<'a> {
    executor: &'a Executor,
    ttl: Duration,
    beat: Duration,
    last: Instant,
    /// For how long, recently, the task was not polled.
    stood_still: Duration,
    /// When the last gap ended.
    since: Instant,
}

impl<'a> Pulse<'a> {
    pub(super) fn new(executor: &'a Executor, ttl: Duration) -> Self {
        let now = executor.clock().now();
        Self {
            executor,
            ttl,
            beat: (ttl / BEATS_PER_TTL).max(Duration::from_millis(1)),
            last: now,
            stood_still: Duration::ZERO,
            since: now,
        }
    }

    /// Polls `work` to its end, and checks the clock meanwhile.
    pub(super) async fn of<F: Future>(&mut self, work: F) -> F::Output {
        let clock = self.executor.clock();
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                output = &mut work => {
                    self.polled(clock.now());
                    return output;
                }
                () = self.executor.sleep(self.beat) => self.polled(clock.now()),
            }
        }
    }

    /// How long the task was not polled although it should have been, within the last ttl or
    /// shortly before it.
    pub(super) fn stood_still(&self) -> Duration {
        self.stood_still
    }

    fn polled(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.last);
        self.last = now;
        if gap > 2 * self.beat {
            self.stood_still += gap - self.beat;
            self.since = now;
        } else if now.saturating_duration_since(self.since) > self.ttl {
            // Requests sent before the gap have been answered by now.
            self.stood_still = Duration::ZERO;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    const TTL: Duration = Duration::from_millis(800);

    /// The pulse after polls at these times, in milliseconds.
    async fn after(polls: &[u64]) -> Duration {
        let executor = Executor::ambient().expect("a runtime");
        let mut pulse = Pulse::new(&executor, TTL);
        let start = pulse.last;
        for &poll in polls {
            pulse.polled(start + Duration::from_millis(poll));
        }
        pulse.stood_still()
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_polled_on_time_does_not_stand_still() {
        let regular: Vec<_> = (0..50).map(|beat| beat * 110).collect();
        assert_eq!(after(&regular).await, Duration::ZERO);
        // A beat late is not late.
        assert_eq!(after(&[100, 300]).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn what_lies_behind_is_forgotten() {
        assert_eq!(after(&[100, 1200]).await, Duration::from_millis(1000));
        let twice = after(&[100, 1200, 1300, 2000]).await;
        assert_eq!(twice, Duration::from_millis(1600));
        let beats = (13..=20).map(|beat| beat * 100);
        let later: Vec<_> = [100, 1200].into_iter().chain(beats).collect();
        assert_eq!(after(&later).await, Duration::from_millis(1000));
        let later: Vec<_> = later.into_iter().chain([2100]).collect();
        assert_eq!(after(&later).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_passes_unpolled_counts() {
        let executor = Executor::ambient().expect("a runtime");
        let mut pulse = Pulse::new(&executor, TTL);
        pulse.of(tokio::time::sleep(10 * TTL)).await;
        assert!(pulse.stood_still().is_zero(), "{:?}", pulse.stood_still());
        let mut blocked = Box::pin(async {
            tokio::task::yield_now().await;
            tokio::time::sleep(TTL / 10).await;
        });
        let mut pulse = Pulse::new(&executor, TTL);
        {
            let mut watched = pin!(pulse.of(blocked.as_mut()));
            let first = poll_fn(|context| Poll::Ready(watched.as_mut().poll(context))).await;
            assert!(first.is_pending());
            tokio::time::advance(2 * TTL).await;
            watched.await;
        }
        assert!(pulse.stood_still() > TTL, "{:?}", pulse.stood_still());
    }
}
