//! Scripts whose answer is lost, and scripts that are run when nobody waits for
//! them any more.

use std::time::Duration;

use dlock::{LockGuard, LockManager};
use dlock_conformance::connect;

use super::FarTables;
use crate::support::wait::{HANG, until, within};

/// Connects it, and lets it do what it does by itself: nothing else goes over
/// its connection for two seconds from here. What is held keeps it so.
pub(super) async fn calm<S: FarTables>(store: &S, manager: &LockManager) -> LockGuard {
    let held = manager.lock("held").acquire().await.expect("the lock");
    let used = manager.lock("used").run(async {}).await;
    used.expect("the lock");
    for _ in 0..5 {
        manager.inspect("held").await.expect("inspect");
    }
    // Its pool asks a connection for a sign of life before it lends it again.
    for _ in 0..10 {
        store.number("SELECT COUNT(*) FROM dlock_lock").await;
    }
    held
}

/// It has the lock, is not told so, and asks again when a writer waits.
pub(crate) async fn a_reader_whose_answer_was_lost_is_put_behind_nobody<S: FarTables>(
    store: &mut S,
) {
    let ttl = 20 * HANG;
    let reader = connect(store.narrow(Duration::from_secs(20)).ttl(ttl)).await;
    let writer = connect(store.direct().ttl(ttl)).await;
    // Over a connection that there is, what is sent comes through.
    let _calm = calm(store, &reader).await;
    store.proxy().swallow_replies(true);
    let asked = tokio::spawn(reader.lock("key").read().try_acquire());
    let held = async || writer.inspect("key").await.expect("inspect").is_some();
    until("the lock is taken", held, |&held| held).await;
    let waiting = tokio::spawn(writer.lock("key").acquire());
    let waiters = async || store.waiters(&writer, "key").await;
    until("a writer waits", waiters, |&waiters| waiters == 1).await;
    store.proxy().swallow_replies(false);

    let held = within(HANG, asked).await.expect("no panic");
    let held = held.expect("it has the lock");
    assert!(held.is_held() && !waiting.is_finished());
    assert_eq!(store.waiters(&writer, "key").await, 1);
    held.release().await.expect("the release");
    let next = within(HANG, waiting).await.expect("no panic");
    next.expect("the lock")
        .release()
        .await
        .expect("the release");
}

/// It has the lock, is not told so, and asks again when there are more beside it than it
/// would have gone in with.
pub(crate) async fn a_permit_whose_answer_was_lost_needs_no_room<S: FarTables>(store: &mut S) {
    let ttl = 20 * HANG;
    let asks = connect(store.narrow(Duration::from_secs(20)).ttl(ttl)).await;
    let other = connect(store.direct().ttl(ttl)).await;
    let _calm = calm(store, &asks).await;
    store.proxy().swallow_replies(true);
    let asked = tokio::spawn(asks.lock("key").permits(1).try_acquire());
    let held = async || other.inspect("key").await.expect("inspect").is_some();
    until("the lock is taken", held, |&held| held).await;
    let mut beside = Vec::new();
    for _ in 0..2 {
        let reader = other.lock("key").read().try_acquire().await;
        beside.push(reader.expect("readers have no number"));
    }
    store.proxy().swallow_replies(false);

    let held = within(HANG, asked).await.expect("no panic");
    let held = held.expect("it has the lock");
    let shown = other.inspect("key").await.expect("inspect");
    assert_eq!(shown.expect("three").holders.len(), 3);
    beside.push(held);
    for guard in beside {
        guard.release().await.expect("it is still held");
    }
}

/// A caller gives up before the request timeout, and what it sent arrives after
/// the lock was given back by another way.
pub(crate) async fn a_script_that_comes_late_locks_nothing_for_who_has_left<S: FarTables>(
    store: &mut S,
) {
    let config = store.narrow(Duration::from_secs(3)).ttl(20 * HANG);
    let manager = connect(config).await;
    let judge = connect(store.direct()).await;
    let _calm = calm(store, &manager).await;
    store.proxy().freeze();
    let left = manager.lock("key");
    let left = left.acquire_within(Duration::from_millis(100)).await;
    left.map(drop).expect_err("no connection carries anything");
    let token = async || {
        let token = "SELECT COALESCE(MAX(token), 0) FROM dlock_lock WHERE name = 'key'";
        store.number(token).await
    };
    let before = until("it is given back", token, |&token| token > 0).await;
    store.proxy().thaw();
    until("what was sent is run", token, |&token| token > before).await;
    let left = async || judge.inspect("key").await.expect("inspect");
    until("nobody has it", left, Option::is_none).await;
}
