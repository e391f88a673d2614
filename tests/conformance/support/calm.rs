//! Tests with time limits, on a machine that may stand still.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread::{JoinHandle, Result, sleep};
use std::time::{Duration, Instant};

/// How often the watch checks whether the machine runs.
const STEP: Duration = Duration::from_millis(5);

const SHORTLY: Duration = Duration::from_secs(2);

/// How many times a test is started.
const ATTEMPTS: usize = 5;

/// Runs `test`, and again if it fails while the machine stood still for at least `limit`, or kept
/// this process or one of its servers from running for as long: then no lease could have been
/// renewed in time. A test that fails while the machine runs has failed, and so has one that fails
/// each time.
pub async fn unless_it_stands_still<T>(limit: Duration, mut test: impl AsyncFnMut() -> T) -> T {
    for _ in 1..ATTEMPTS {
        let (watch, starved) = (Watch::start(), Starved::since_now());
        match caught(test()).await {
            Ok(value) => return value,
            Err(panic) => {
                let stood_still = watch.longest().max(starved.longest());
                if stood_still < limit || panic.is::<Never>() {
                    resume_unwind(panic);
                }
                println!("the machine stood still for {stood_still:?}: once more");
            }
        }
    }
    test().await
}

/// What no standstill of the machine explains.
struct Never;

/// Fails for good if this does not hold, also inside [`unless_it_stands_still`].
#[track_caller]
pub fn always(holds: bool, what: impl std::fmt::Display) {
    if !holds {
        println!("{}: {what}", std::panic::Location::caller());
        std::panic::panic_any(Never);
    }
}

/// Runs `test`, and returns its panic as an error.
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

/// For how long the threads of this process and of its servers have waited for a processor.
struct Starved(Arc<HashMap<PathBuf, Duration>>);

impl Starved {
    /// Since now, or shortly before: with a hundred threads to look at, it takes some milliseconds.
    fn since_now() -> Self {
        static LAST: Mutex<Option<(Instant, Starved)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((seen, Self(waits))) if seen.elapsed() < SHORTLY => Self(Arc::clone(waits)),
            _ => {
                let waits = Arc::new(waited());
                *last = Some((Instant::now(), Self(Arc::clone(&waits))));
                Self(waits)
            }
        }
    }

    /// The longest time that one of them has waited since then, in sum: a server that is kept from
    /// running answers as late as one on a machine that stands still.
    fn longest(&self) -> Duration {
        let waits = waited().into_iter().map(|(thread, waited)| {
            let before = self.0.get(&thread).copied();
            waited.saturating_sub(before.unwrap_or_default())
        });
        waits.max().unwrap_or_default()
    }
}

/// How long each of these threads has waited for a processor so far. None outside of Linux
/// (<https://docs.kernel.org/scheduler/sched-stats.html#proc-pid-schedstat>).
fn waited() -> HashMap<PathBuf, Duration> {
    let mut waited = HashMap::new();
    let mut processes = vec![std::process::id()];
    while let Some(process) = processes.pop() {
        let threads = std::fs::read_dir(format!("/proc/{process}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let thread = thread.path();
            let read = |file| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
            let nanos = read("schedstat");
            let nanos = nanos.split(' ').nth(1).and_then(|nanos| nanos.parse().ok());
            let children = read("children");
            processes.extend(children.split(' ').filter_map(|id| id.parse::<u32>().ok()));
            waited.extend(nanos.map(|nanos| (thread, Duration::from_nanos(nanos))));
        }
    }
    waited
}

/// A thread that measures how late it is woken.
struct Watch {
    shared: Arc<(AtomicBool, AtomicU64)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start() -> Self {
        let shared = Arc::<(AtomicBool, AtomicU64)>::default();
        let seen = Arc::clone(&shared);
        // The machine may also stand still before the thread begins.
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

    /// The longest time for which it was not woken.
    fn longest(mut self) -> Duration {
        self.shared.0.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
        Duration::from_micros(self.shared.1.load(Relaxed))
    }
}

impl Drop for Watch {
    /// The thread ends after its next step.
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
    async fn what_always_holds_is_not_begun_again() {
        let mut attempts = 0;
        let test = unless_it_stands_still(STEP, async || {
            attempts += 1;
            always(false, "it fails");
        });
        let failed: Result<()> = caught(test).await;
        assert!(failed.is_err());
        assert_eq!(attempts, 1);
    }

    #[tokio::test]
    async fn what_fails_while_the_machine_stands_still_is_begun_again() {
        let mut attempts = 0;
        // The shortest limit that the watch can detect.
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
