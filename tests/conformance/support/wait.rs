//! Waiting for a condition, never for a time.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// What no test takes unless it hangs: generous, as the machine may be slow and
/// shared.
pub const HANG: Duration = Duration::from_secs(180);

/// How often a condition is looked at.
pub const STEP: Duration = Duration::from_millis(5);

/// Awaits `future`, and fails rather than hang.
#[track_caller]
pub fn within<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        timeout(limit, future)
            .await
            .unwrap_or_else(|_| panic!("{caller}: still not done after {limit:?}"))
    }
}

/// Waits until `check` gives a value, and fails with `what` after [`HANG`].
pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(start.elapsed() < HANG, "after {HANG:?}, still not: {what}");
        sleep(STEP).await;
    }
}

/// Waits until `read` gives what `wanted` accepts, and shows the last value on
/// failure.
pub async fn until<T: Debug>(
    what: &str,
    mut read: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let start = Instant::now();
    loop {
        let value = read().await;
        if wanted(&value) {
            return value;
        }
        assert!(
            start.elapsed() < HANG,
            "after {HANG:?}, still not: {what}; it is {value:?}"
        );
        sleep(STEP).await;
    }
}

/// The same for code that is not async.
pub fn eventually_blocking<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let start = std::time::Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(start.elapsed() < HANG, "after {HANG:?}, still not: {what}");
        std::thread::sleep(STEP);
    }
}
