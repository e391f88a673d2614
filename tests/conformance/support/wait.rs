//! Waiting for a condition, never for a fixed time.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Longer than any test takes unless it hangs: generous, since the machine may be slow and
/// shared.
pub const HANG: Duration = Duration::from_secs(180);

/// How often a condition is checked.
pub const STEP: Duration = Duration::from_millis(5);

/// Awaits `future`, and fails after `limit` instead of hanging.
#[track_caller]
pub fn within<F: Future>(limit: Duration, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        timeout(limit, future)
            .await
            .unwrap_or_else(|_| panic!("{caller}: still not done after {limit:?}"))
    }
}

/// Waits until `check` returns a value, and fails with `what` after [`HANG`].
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

/// Waits until `read` returns a value that `wanted` accepts, and shows the last value on failure.
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

/// Like [`eventually`], for code that is not async.
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
