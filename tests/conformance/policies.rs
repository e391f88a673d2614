//! Guarantee 1: whether a call gets the lock, and how it reports that it does not.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dlock::{LockError, LockManager, distributed_lock};

use super::{Store, connect, free, process, queued};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{held, is_busy, is_late, says};
use crate::support::wait::{HANG, within};

/// Long enough for an answer of a store on a busy machine. Without an answer, the wait would end
/// as an outage.
pub(crate) const PATIENCE: Duration = Duration::from_millis(600);

/// If the machine stands still this long at each of the many turns that an answer takes, there is
/// none in that time.
pub(crate) const TOO_STILL: Duration = Duration::from_millis(50);

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
        unless_it_stands_still(TOO_STILL, async || {
            let start = Instant::now();
            let waits = manager.lock("key").acquire_within(PATIENCE);
            says(&is_late(within(HANG, waits).await), &["`key`"]);
            let waited = start.elapsed();
            assert!(waited >= PATIENCE, "gave up after {waited:?}");
        })
        .await;
    }
    assert!(guard.is_held());
}

pub(crate) async fn the_configured_timeout_applies(store: &mut dyn Store) {
    let holder = process(store).await;
    let other = connect(super::config(store).timeout(PATIENCE)).await;
    let _guard = held(holder.lock("key")).await;
    // If the store has not answered in that time, it is an outage.
    let attempt = async || {
        let ran = AtomicBool::new(false);
        let body = async { ran.store(true, Relaxed) };
        is_late(within(HANG, other.lock("key").run(body)).await);
        assert!(!ran.load(Relaxed), "the body ran without the lock");
        is_late(within(HANG, other.lock("key").acquire()).await);
    };
    unless_it_stands_still(TOO_STILL, attempt).await;
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
    let waits = async || {
        is_late(within(HANG, other.scope(wait_for_job(&ran))).await);
    };
    unless_it_stands_still(TOO_STILL, waits).await;
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
