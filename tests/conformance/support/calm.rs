//! What has to be done in time, on a machine that may stand still.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::thread::{JoinHandle, Result, sleep};
use std::time::{Duration, Instant};

/// How often it is looked whether the machine goes on.
const STEP: Duration = Duration::from_millis(5);

/// How often a test is begun.
const ATTEMPTS: usize = 5;

/// Runs `test`, and once more if it fails while the machine stood still for as long as
/// `limit`: nobody could have renewed then what was to be renewed. What fails on a machine
/// that goes on has failed.
pub async fn unless_it_stands_still<T>(limit: Duration, mut test: impl AsyncFnMut() -> T) -> T {
    for _ in 1..ATTEMPTS {
        let watch = Watch::start();
        match caught(test()).await {
            Ok(value) => return value,
            Err(panic) => {
                let stood_still = watch.longest();
                if stood_still < limit {
                    resume_unwind(panic);
                }
                println!("the machine stood still for {stood_still:?}: once more");
            }
        }
    }
    test().await
}

/// What it panics with is handed out.
async fn caught<T>(test: impl Future<Output = T>) -> Result<T> {
    let mut test = pin!(test);
    poll_fn(
        |cx| match catch_unwind(AssertUnwindSafe(|| test.as_mut().poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        },
    )
    .await
}

/// A thread that does nothing but see how late it is woken.
struct Watch {
    shared: Arc<(AtomicBool, AtomicU64)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start() -> Self {
        let shared = Arc::<(AtomicBool, AtomicU64)>::default();
        let seen = Arc::clone(&shared);
        // The machine may stand still before the thread begins, too.
        let mut last = Instant::now();
        let thread = std::thread::spawn(move || {
            let (ended, longest) = &*seen;
            loop {
                sleep(STEP);
                let micros = u64::try_from(last.elapsed().as_micros());
                longest.fetch_max(micros.unwrap_or(u64::MAX), Relaxed);
                last = Instant::now();
                if ended.load(Relaxed) {
                    break;
                }
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// How long it was not woken, at most.
    fn longest(mut self) -> Duration {
        self.shared.0.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
        Duration::from_micros(self.shared.1.load(Relaxed))
    }
}

impl Drop for Watch {
    /// The thread ends behind its next step.
    fn drop(&mut self) {
        self.shared.0.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_fails_while_the_machine_goes_on_has_failed() {
        let mut attempts = 0;
        let test = unless_it_stands_still(Duration::MAX, async || {
            attempts += 1;
            panic!("it fails");
        });
        let failed: Result<()> = caught(test).await;
        assert!(failed.is_err());
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn what_fails_while_the_machine_stands_still_is_begun_again() {
        let mut attempts = 0;
        // The least that shows.
        unless_it_stands_still(STEP, async || {
            attempts += 1;
            assert!(attempts > 2, "it fails");
        })
        .await;
        assert_eq!(attempts, 3);
        let never = caught(unless_it_stands_still(STEP, async || {
            attempts += 1;
            panic!("it fails");
        }));
        let failed: Result<()> = never.await;
        assert!(failed.is_err());
        assert_eq!(attempts, 3 + ATTEMPTS);
    }
}
