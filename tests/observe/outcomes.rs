//! How asking for a lock ends when it is not had.

use std::time::Duration;

use dlock::{Config, LockError, LockManager, LockRequest, distributed_lock};

use crate::collector::collector;
use crate::support::locks::{
    connect, is_busy, is_done, is_late, is_shut_down, is_unavailable, would_deadlock,
};
use crate::support::wait::until;
use crate::{memory, ms, settle};

fn count(template: &str, mode: &str, outcome: &str) -> Option<f64> {
    collector().calls(template, mode, outcome)
}

fn held(manager: &LockManager, key: &'static str) -> LockRequest {
    manager.lock(key).template(key)
}

/// The line that says why a lock was not had, inside the span of the call.
fn refusal(key: &str, outcome: &str) {
    let lines = collector().of_target(key, "dlock::refuse");
    let line = lines
        .iter()
        .find(|line| line.field("outcome") == outcome)
        .unwrap_or_else(|| panic!("{outcome} on {key}: {lines:#?}"));
    assert_eq!((line.level(), line.span("name")), ("DEBUG", "lock"));
}

#[distributed_lock(key = "outcomes/held", try)]
async fn try_it() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "outcomes/held", timeout = "50ms")]
async fn wait_for_it() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn busy_timeout_and_cancelled() {
    let (_memory, manager) = memory().await;
    let key = "outcomes/held";
    let guard = held(&manager, key).acquire().await.expect("it is free");

    is_busy(manager.scope(try_it()).await);
    is_late(manager.scope(wait_for_it()).await);
    let gone = tokio::time::timeout(ms(50), held(&manager, key).acquire()).await;
    assert!(gone.is_err());
    drop(guard);

    for outcome in ["granted", "busy", "timeout", "cancelled"] {
        assert_eq!(count(key, "write", outcome), Some(1.0), "{outcome}");
    }
    for outcome in ["busy", "timeout", "cancelled"] {
        refusal(key, outcome);
    }
    assert_eq!(collector().number("dlock_waiting", key, &[]), Some(0.0));
    // Of these, only the grant has waited for something that came.
    let waits = collector().number("dlock_wait_seconds_count", key, &[]);
    assert_eq!(waits, Some(1.0));
}

/// Told to who comes later, and to who waits meanwhile, here and in another process.
#[tokio::test(start_paused = true)]
async fn done() {
    let (memory, manager) = memory().await;
    let elsewhere = connect(Config::with_backend(memory)).await;
    let key = "outcomes/done";
    let once = |manager| held(manager, key).once(Duration::from_secs(3600));
    let guard = once(&manager).acquire().await.expect("it is free");
    let waiting = [&manager, &elsewhere].map(|manager| tokio::spawn(once(manager).acquire()));
    settle().await;
    let number = |name| collector().number(name, key, &[]);
    assert_eq!(number("dlock_waiting"), Some(2.0));
    guard.release_done().await.expect("it is held");
    for told in waiting {
        is_done(told.await.expect("no panic"));
    }
    is_done(once(&manager).try_acquire().await);
    is_done(once(&manager).run(async { Ok::<_, ()>(()) }).await);

    assert_eq!(count(key, "write", "granted"), Some(1.0));
    assert_eq!(count(key, "write", "done"), Some(4.0));
    for (name, expected) in [
        ("dlock_waiting", 0.0),
        ("dlock_held", 0.0),
        // Of these, only the grant has waited for something that came.
        ("dlock_wait_seconds_count", 1.0),
        ("dlock_hold_seconds_count", 1.0),
    ] {
        assert_eq!(number(name), Some(expected), "{name}");
    }
    refusal(key, "done");
    assert_eq!(collector().of_target(key, "dlock::refuse").len(), 4);
    // Each call had a span, of which only that of the grant has a token.
    let closed = async || collector().closed_spans(key);
    let spans = until("spans are closed", closed, |spans| spans.len() == 5).await;
    let granted = spans.iter().filter(|span| !span.span("token").is_empty());
    assert_eq!(granted.count(), 1);
    // It is an answer of the store, and no failure.
    let failures = collector().failures(key);
    let none = failures.iter().all(|line| line.ends_with(" 0"));
    assert!(none && !failures.is_empty(), "{failures:?}");
}

#[tokio::test(start_paused = true)]
async fn unavailable_is_counted_at_the_call_and_at_the_store() {
    let (memory, manager) = memory().await;
    let key = "outcomes/outage";
    memory.faults().set_unavailable(true);
    is_unavailable(held(&manager, key).acquire().await);

    assert_eq!(count(key, "write", "unavailable"), Some(1.0));
    refusal(key, "unavailable");
    assert_eq!(collector().store_errors(key, "acquire"), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn a_store_too_slow_for_the_timeout_is_a_store_error() {
    let (memory, manager) = memory().await;
    let key = "outcomes/slow";
    memory.faults().set_delay(Some(Duration::from_secs(3600)));
    is_unavailable(held(&manager, key).acquire_within(ms(50)).await);
    assert_eq!(count(key, "write", "unavailable"), Some(1.0));
    assert_eq!(collector().store_errors(key, "acquire"), Some(1.0));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_counted() {
    let (_memory, manager) = memory().await;
    let key = "outcomes/deadlock";
    let lock = || dlock::lock(key).template(key);
    let inside = async { lock().acquire().await.map(drop) };
    let refused = manager.scope(lock().read().run(inside)).await;
    would_deadlock(refused.expect("the lock is free"));
    assert_eq!(count(key, "read", "granted"), Some(1.0));
    assert_eq!(count(key, "write", "would_deadlock"), Some(1.0));
    // Told in the section that it is inside of.
    refusal(key, "would_deadlock");

    let short = held(&manager, "outcomes/short").ttl(Duration::ZERO);
    assert!(short.acquire().await.is_err());
    assert_eq!(count("outcomes/short", "write", "invalid"), Some(1.0));

    let guard = held(&manager, "outcomes/shut").acquire().await;
    let waiter = tokio::spawn(held(&manager, "outcomes/shut").run(async {}));
    settle().await;
    let ends = async {
        is_shut_down(waiter.await.expect("no panic"));
        drop(guard.expect("it is free"));
    };
    tokio::join!(manager.shutdown(), ends);
    assert_eq!(count("outcomes/shut", "write", "shut_down"), Some(1.0));
}
