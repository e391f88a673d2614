//! Guarantee 1: whether a call gets the lock, and how it reports that it does not.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dlock::{LockError, LockManager, distributed_lock};

use super::{Store, connect, free, process, queued};
use crate::support::locks::{held, is_busy, is_late, says};
use crate::support::wait::{HANG, within};

/// Long enough for an answer of a store, also on a machine that is quite busy.
pub(crate) const PATIENCE: Duration = Duration::from_millis(600);

/// How often to wait again where the store has not answered in that time, which is an outage.
const AGAIN: usize = 30;

/// The error of a wait that ends at its timeout.
pub(crate) async fn timed_out<T>(waits: impl AsyncFn() -> Result<T, LockError>) -> LockError {
    for _ in 0..AGAIN {
        match within(HANG, waits()).await {
            Err(LockError::Unavailable { .. }) => {}
            waited => return is_late(waited),
        }
    }
    is_late(within(HANG, waits()).await)
}

pub(crate) async fn a_free_lock_is_had_at_once(store: &mut dyn Store) {
    let manager = process(store).await;
    let guard = manager.lock("key").try_acquire().await;
    let guard = guard.expect("a free lock");
    assert!(guard.is_held());
    assert_eq!(guard.key().to_string(), "key");
    guard.release().await.expect("the release");

    let guard = manager.lock("key").acquire_within(HANG).await;
    guard.expect("a free lock").release().await.expect("held");
    let value = manager.lock("key").run(async { 7 }).await;
    assert_eq!(value.expect("a free lock"), 7);
    free(&manager, "key").await;
}

pub(crate) async fn a_held_lock_is_busy_for_who_does_not_wait(store: &mut dyn Store) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = held(holder.lock("key")).await;
    for manager in [&holder, &other] {
        let busy = is_busy(manager.lock("key").try_acquire().await);
        says(&busy, &["`key`"]);
    }
    guard.release().await.expect("the release");
    drop(other.lock("key").try_acquire().await.expect("a free lock"));
}

pub(crate) async fn a_wait_ends_at_its_timeout(store: &mut dyn Store) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = held(holder.lock("key")).await;
    for manager in [&holder, &other] {
        let waited = Mutex::new(Duration::ZERO);
        let waits = async || {
            let start = Instant::now();
            let told = manager.lock("key").acquire_within(PATIENCE).await;
            *waited.lock().expect("no panic") = start.elapsed();
            told
        };
        says(&timed_out(waits).await, &["`key`"]);
        let waited = waited.into_inner().expect("no panic");
        assert!(waited >= PATIENCE, "gave up after {waited:?}");
    }
    assert!(guard.is_held());
}

pub(crate) async fn the_configured_timeout_applies(store: &mut dyn Store) {
    let holder = process(store).await;
    let other = connect(super::config(store).timeout(PATIENCE)).await;
    let _guard = held(holder.lock("key")).await;
    let ran = AtomicBool::new(false);
    let body = async || ran.store(true, Relaxed);
    timed_out(async || other.lock("key").run(body()).await).await;
    assert!(!ran.load(Relaxed), "the body ran without the lock");
    timed_out(async || other.lock("key").acquire().await).await;
}

#[distributed_lock(key = "stock:<sku>")]
async fn holders_of(manager: &LockManager, sku: &str) -> Result<usize, LockError> {
    let lock = manager.inspect(format!("stock:{sku}")).await?;
    Ok(lock.map_or(0, |lock| lock.holders.len()))
}

pub(crate) async fn the_attribute_runs_its_body_under_the_lock(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let holders = manager.scope(holders_of(&other, "42")).await;
    assert_eq!(holders.expect("the lock"), 1);
    free(&other, "stock:42").await;
}

#[distributed_lock(key = "job", try)]
async fn try_job(ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Relaxed);
    Ok(())
}

#[distributed_lock(key = "job", timeout = "600ms")]
async fn wait_for_job(ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Relaxed);
    Ok(())
}

pub(crate) async fn the_attribute_gives_up_as_it_is_told(store: &mut dyn Store) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = held(holder.lock("job")).await;
    let ran = AtomicBool::new(false);
    is_busy(within(HANG, other.scope(try_job(&ran))).await);
    timed_out(async || other.scope(wait_for_job(&ran)).await).await;
    assert!(!ran.load(Relaxed), "the body ran without the lock");

    // A call that gave up leaves the queue in the background.
    queued(store, &holder, "job", 0).await;
    guard.release().await.expect("the release");
    let tried = within(HANG, other.scope(try_job(&ran))).await;
    tried.expect("a free lock");
    assert!(ran.load(Relaxed));
}

#[distributed_lock(key = "job", try, on_error = |error: LockError| error.to_string())]
async fn report() -> String {
    "ran".to_owned()
}

pub(crate) async fn on_error_makes_the_value(store: &mut dyn Store) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = held(holder.lock("job")).await;
    let message = other.scope(report()).await;
    assert!(message.contains("`job`"), "{message}");
    guard.release().await.expect("the release");
    assert_eq!(other.scope(report()).await, "ran");
}
