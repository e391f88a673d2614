//! The `memory:` store: the conformance suite, and what only it can do.

mod support;

use dlock::{Config, LockError, LockManager};
use std::time::Duration;

use dlock::backend::memory::Memory;
use dlock::backend::{Backend as _, Mode, Request};
use dlock_conformance::{Store, async_trait, conformance};

use tokio::time::Instant;

use support::wait::HANG;

struct MemoryStore(Memory);

#[async_trait(?Send)]
impl Store for MemoryStore {
    async fn start() -> Self {
        Self(Memory::new())
    }

    fn leaves_out() -> &'static [&'static str] {
        &["late_commands", "cost", "restart"]
    }

    fn config(&self) -> Config {
        Config::with_backend(self.0.clone())
    }

    async fn take_away(&self, key: &str) {
        assert!(self.0.faults().take_away(key), "nobody held `{key}`");
    }

    async fn set_outage(&self, outage: bool) {
        self.0.faults().set_unavailable(outage);
    }
}

conformance!(crate::MemoryStore);

/// With paused time, a test of code that uses locks waits for no ttl.
#[tokio::test(start_paused = true)]
async fn paused_time_drives_it() {
    let hour = Duration::from_secs(3600);
    let real = std::time::Instant::now();
    let memory = Memory::new();
    let here = connect(&memory).await;
    let there = connect(&memory).await;

    let start = Instant::now();
    let fixed = here.lock("fixed").ttl(hour).renew(false);
    std::mem::forget(fixed.acquire().await.expect("the lock"));
    drop(there.lock("fixed").acquire().await.expect("the lock"));
    assert!(start.elapsed() >= hour);

    let renewed = here
        .lock("renewed")
        .ttl(hour)
        .run(tokio::time::sleep(10 * hour));
    renewed.await.expect("a lease that is renewed");
    let timeout = there.lock("fixed").acquire().await.expect("the lock");
    let late = here.lock("fixed").acquire_within(hour).await;
    assert!(matches!(late, Err(LockError::Timeout { .. })), "{late:?}");
    drop(timeout);
    assert!(real.elapsed() < HANG);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_can_be_played() {
    let memory = Memory::new();
    let manager = connect(&memory).await;
    let delay = Duration::from_secs(7);
    memory.faults().set_delay(Some(delay));
    let start = Instant::now();
    let guard = manager.lock("key").acquire().await.expect("the lock");
    assert!(start.elapsed() >= delay);
    // The store has not answered: that is an outage, and nobody holds the lock.
    let late = manager.lock("other").acquire_within(delay / 2).await;
    assert!(
        matches!(late, Err(LockError::Unavailable { .. })),
        "{late:?}"
    );
    memory.faults().set_delay(None);
    guard.release().await.expect("the release");
    // What the timeout interrupted has left nothing.
    assert!(manager.list("").await.expect("list").is_empty());
}

async fn connect(memory: &Memory) -> LockManager {
    support::locks::connect(Config::with_backend(memory.clone())).await
}

#[test]
fn memory_is_what_its_url_says() {
    for url in ["memory:x", "memory://", "memory://host"] {
        let error = Config::from_url(url).expect_err("not the memory store");
        assert!(
            matches!(error, LockError::Config { .. }),
            "{url}: {error:?}"
        );
        assert!(error.to_string().contains("memory:"), "{error}");
    }
    assert!(Config::from_url("memory:").is_ok());
}

/// A store that this build does not have.
#[cfg(not(feature = "redis"))]
#[test]
fn a_feature_that_is_off_is_named() {
    for url in [
        "redis://:hunter2@127.0.0.1:6379",
        "rediss://:hunter2@127.0.0.1",
    ] {
        let error = Config::from_url(url).expect_err("without the feature");
        assert!(matches!(error, LockError::Config { .. }), "{error:?}");
        let message = format!("{error} {error:?}");
        assert!(message.contains("feature `redis`"), "{message}");
        assert!(!message.contains("hunter2"), "{message}");
    }
}

/// Whoever waits asks again when the lease would have ended that it saw. It must not be
/// behind those then who came later, when the lease had been renewed.
#[tokio::test(start_paused = true)]
async fn who_asks_again_keeps_its_place() {
    let second = Duration::from_secs(1);
    let memory = Memory::new();
    let request = || Request::new("key", Mode::Write, 10 * second);
    let waits = |memory: &Memory| {
        let (memory, request) = (memory.clone(), request());
        tokio::spawn(async move { memory.acquire(&request).await })
    };

    let holder = request();
    let held = memory.try_acquire(&holder).await.expect("it answers");
    assert!(held.is_some());
    let mut first = waits(&memory);
    tokio::time::sleep(5 * second).await;
    memory.renew(std::slice::from_ref(&holder)).await;
    let second_in_line = waits(&memory);
    tokio::time::sleep(8 * second).await;
    memory.release(&holder).await.expect("it answers");

    let granted = tokio::time::timeout(second, &mut first).await;
    assert!(granted.is_ok(), "it has lost its place");
    assert!(!second_in_line.is_finished());
    second_in_line.abort();
}
