//! What the server does for a client that has gone.

use std::time::Duration;

use dlock::{LockError, LockManager};
use dlock_conformance::{Store as _, connect};
use tokio::time::sleep;

use super::{Database, DatabaseStore};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{held, impatient};
use crate::support::wait::{HANG, until, within};
use crate::tables::{FarTables as _, Tables as _};

/// Somebody keeps a row. Who has asked for it and been told of an outage does
/// not wait for it in the server any more.
pub(crate) async fn nobody_waits_for_a_row_after_the_request_timeout<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    const SHORT: Duration = Duration::from_secs(1);
    let manager = impatient(|| store.config().request_timeout(SHORT).ttl(SHORT)).await;
    let operator = store.keep_new("key").await;
    let error = within(HANG, manager.lock("key").acquire()).await.map(drop);
    let error = error.expect_err("somebody keeps its row");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    within(HANG, manager.shutdown()).await;
    drop(manager);
    let waiting = async || store.number(D::WAITING).await;
    until("nobody waits in the server", waiting, |&count| count == 0).await;
    drop(operator);
}

/// Waits until this many statements wait for rows in the server.
async fn waiting<D: Database>(store: &DatabaseStore<D>, count: i64) {
    let waiting = async || store.number(D::WAITING).await;
    until("they wait", waiting, |&waiting| waiting >= count).await;
}

/// A lock whose row nobody keeps is had in spite of them, long before they are told of an outage.
async fn another_is_had(manager: &LockManager) {
    let free = within(HANG, manager.lock("free").try_acquire()).await;
    free.expect("free").release().await.expect("it is held");
}

/// Somebody keeps the rows of two locks. Who asks for another one does not wait for them.
pub(crate) async fn rows_that_somebody_keeps_stop_no_other_lock<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    let manager = connect(store.direct().request_timeout(2 * HANG)).await;
    let keepers = [store.keep_new("a").await, store.keep_new("b").await];
    let asked = ["a", "b"].map(|key| tokio::spawn(manager.lock(key).acquire()));
    waiting(&store, 2).await;
    another_is_had(&manager).await;
    drop(keepers);
    for one in asked {
        let lock = within(HANG, one).await.expect("no panic");
        lock.expect("the lock").release().await.expect("it is held");
    }
}

/// Those who asked have given up, one after the other, and their scripts wait in the server.
pub(crate) async fn a_row_that_was_given_up_stops_no_other_lock<D: Database>() {
    let store = DatabaseStore::<D>::start().await;
    let manager = connect(store.direct().request_timeout(2 * HANG)).await;
    let keeper = store.keep_new("a").await;
    for count in 1..=2 {
        let asked = tokio::spawn(manager.lock("a").acquire());
        waiting(&store, count).await;
        asked.abort();
        let _ = asked.await;
    }
    another_is_had(&manager).await;
    drop(keeper);
}

/// Nobody waits for what is undone then, again and again.
pub(crate) async fn what_was_given_up_waits_over_few_connections<D: Database>() {
    let still = Duration::from_millis(500);
    unless_it_stands_still(still, waits_over_few_connections::<D>).await;
}

async fn waits_over_few_connections<D: Database>() {
    const SHORT: Duration = Duration::from_secs(4);
    let store = DatabaseStore::<D>::start().await;
    let manager = connect(store.direct().request_timeout(SHORT)).await;
    let keeper = store.keep_new("a").await;
    for count in 1..=3 {
        let asked = tokio::spawn(manager.lock("a").acquire());
        waiting(&store, count).await;
        asked.abort();
        let _ = asked.await;
    }
    // What was asked ends in the server, and so does the first attempt to undo each. Nothing shows
    // when: it is what comes later that is looked at.
    sleep(2 * SHORT).await;
    for _ in 0..20 {
        let waiting = store.number(D::WAITING).await;
        assert!(waiting <= 1, "{waiting} wait");
        sleep(SHORT / 40).await;
    }
    another_is_had(&manager).await;
    drop(keeper);
}

/// As many scripts wait for rows as there may be connections for those who ask. The leases of this
/// process are extended all the same.
pub(crate) async fn scripts_that_wait_leave_a_connection_to_leases<D: Database>() {
    const TTL: Duration = Duration::from_secs(15);
    let store = DatabaseStore::<D>::start().await;
    let manager = connect(store.direct().request_timeout(2 * HANG).ttl(TTL)).await;
    let lease = held(manager.lock("lease")).await;
    let keys = ["a", "b", "c", "d"];
    let mut keepers = Vec::new();
    for key in keys {
        keepers.push(store.keep_new(key).await);
    }
    let asked = keys.map(|key| tokio::spawn(manager.lock(key).read().acquire()));
    waiting(&store, 3).await;
    let end = "SELECT expires_at FROM dlock_lock WHERE name = 'lease'";
    let before = store.number(end).await;
    let later = async || store.number(end).await;
    tokio::select! {
        _ = until("it is extended", later, |&end| end > before) => {}
        reason = lease.lost() => panic!("it was not extended: {reason:?}"),
    }
    for one in asked {
        one.abort();
    }
    drop(keepers);
}
