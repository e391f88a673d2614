//! Rows that others keep, and connections that carry nothing any more.

use std::time::Duration;

use tokio::time::sleep;

use dlock::LockError;
use dlock_conformance::connect;

use super::FarTables;
use super::late::{calm, had_without_an_answer};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{healed_at, impatient};
use crate::support::wait::{HANG, eventually, within};

/// An operator has not ended a transaction. The lease of that lock cannot be
/// extended, and those that are extended together with it can.
pub(crate) async fn a_row_that_somebody_keeps_costs_no_other_lease<S: FarTables>(store: &mut S) {
    let ttl = Duration::from_secs(4);
    unless_it_stands_still(ttl / 4, async || a_row_is_kept(&*store, ttl).await).await;
}

/// Whoever stands still for so long that a lease cannot be extended loses it.
async fn a_row_is_kept<S: FarTables>(store: &S, ttl: Duration) {
    let manager = connect(store.direct().ttl(ttl)).await;
    let mut others = Vec::new();
    for number in 0..20 {
        let key = format!("key:{number}");
        others.push(manager.lock(key).acquire().await.expect("the lock"));
    }
    let kept = manager.lock("kept").acquire().await.expect("the lock");
    let keeper = store.keep("kept").await;
    within(HANG, kept.lost()).await;
    // Each of them was to be extended with it.
    for other in &others {
        let lost = tokio::time::timeout(ttl / 20, other.lost()).await;
        lost.expect_err("nobody keeps its row");
    }
    drop(keeper);
    for other in others {
        other.release().await.expect("it is still held");
    }
}

/// Somebody has kept its row meanwhile: what counts is the time when it was had, not that
/// when its script began.
pub(crate) async fn a_lease_that_ends_while_its_row_is_waited_for_has_ended<S: FarTables>(
    store: &mut S,
) {
    let ttl = Duration::from_secs(2);
    let dead = connect(store.direct().ttl(ttl)).await;
    let config = store.direct().ttl(20 * HANG).request_timeout(HANG);
    let manager = connect(config).await;
    let lease = dead.lock("key").renew(false).acquire().await;
    std::mem::forget(lease.expect("the lock"));
    let row = store.keep("key").await;
    // Shared, as that is one script.
    let tried = within(HANG, manager.lock("key").read().try_acquire());
    let keeps = async {
        sleep(2 * ttl).await;
        drop(row);
    };
    let (tried, ()) = tokio::join!(tried, keeps);
    tried
        .expect("its lease has ended")
        .release()
        .await
        .expect("held");
}

/// A firewall has forgotten a connection that was idle: it is replaced before
/// anything is sent over it.
pub(crate) async fn a_connection_that_was_forgotten_costs_no_operation<S: FarTables>(
    store: &mut S,
) {
    let manager = connect(store.narrow(Duration::from_secs(20))).await;
    // Idle for longer than dlock trusts a connection.
    sleep(Duration::from_secs(6)).await;
    store.proxy().freeze();
    let lock = within(HANG, manager.lock("key").acquire()).await;
    let lock = lock.expect("the database answers");
    lock.release().await.expect("the release");
}

/// The network falls silent just behind an answer. Nothing waits for that connection
/// without a limit: its place is free again for another.
pub(crate) async fn a_silence_behind_an_answer_keeps_no_place<S: FarTables>(store: &mut S) {
    let manager = impatient(|| store.narrow(Duration::from_secs(2))).await;
    store.proxy().delay(Some(Duration::from_millis(100)));
    healed_at(&manager, "key").await;
    store.proxy().freeze();
    store.proxy().delay(None);
    eventually("it is reached over another connection", async || {
        let lock = manager.lock("key").try_acquire().await.ok()?;
        lock.release().await.ok()
    })
    .await;
}

/// A `try` for writing asks twice where the lock is not free, and has one request
/// timeout for both. Somebody keeps the row from the first question for most of
/// it, and the queue from the second for longer.
pub(crate) async fn a_try_has_one_request_timeout_for_all_it_asks<S: FarTables>(store: &mut S) {
    unless_it_stands_still(Duration::from_secs(1), async || {
        tries_for_long(&*store).await
    })
    .await;
}

/// If the machine stands still, both are given free before it has asked.
async fn tries_for_long<S: FarTables>(store: &S) {
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
    let config = store.direct().ttl(20 * HANG);
    let manager = connect(config.request_timeout(REQUEST_TIMEOUT)).await;
    let other = connect(store.direct().ttl(20 * HANG)).await;
    let _held = other.lock("key").acquire().await.expect("the lock");
    let (row, queue) = (store.keep("key").await, store.keep_queue().await);
    let keeps = async {
        sleep(REQUEST_TIMEOUT * 2 / 3).await;
        drop(row);
        sleep(REQUEST_TIMEOUT * 2 / 3).await;
        drop(queue);
    };
    let tried = within(HANG, manager.lock("key").try_acquire());
    let (tried, ()) = tokio::join!(tried, keeps);
    let error = tried.map(drop).expect_err("somebody holds it");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
}

/// A script whose connection was cut may be run yet, and what it locks is given
/// back in the background. Nobody who shuts down waits for that: all that was to
/// be given back has been.
pub(crate) async fn a_shutdown_waits_for_no_script_that_may_come_yet<S: FarTables>(store: &mut S) {
    // A late script would be waited for twice as long as this.
    let manager = connect(store.narrow(HANG).ttl(20 * HANG)).await;
    let other = connect(store.direct()).await;
    let _calm = calm(store, &manager).await;
    let ask = || tokio::spawn(manager.lock("key").acquire());
    let asked = had_without_an_answer(store, &other, "key", ask).await;
    store.proxy().swallow_replies(false);
    let lock = within(HANG, asked).await.expect("no panic");
    drop(lock.expect("the lock, asked for once more"));
    within(HANG, manager.shutdown()).await;
    let left = other.inspect("key").await.expect("inspect");
    assert!(left.is_none(), "{left:?}");
}
