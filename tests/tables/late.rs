//! Scripts whose answer is lost, and scripts that are run when nobody waits for
//! them any more.

use std::time::{Duration, Instant};

use dlock::{LockError, LockGuard, LockManager};
use dlock_conformance::connect;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::FarTables;
use crate::support::locks::{healed_at, held_at_last};
use crate::support::wait::{HANG, STEP, eventually, until, within};

/// What is sent over a connection that there is has come through by then.
pub(super) const SOON: Duration = Duration::from_secs(5);

/// Connects it, and lets it do what it does by itself: nothing else goes over
/// its connection for two seconds from here. What is held keeps it so.
pub(super) async fn calm<S: FarTables>(store: &S, manager: &LockManager) -> LockGuard {
    let held = held_at_last(|| manager.lock("held")).await;
    healed_at(manager, "used").await;
    for _ in 0..5 {
        let inspected = async || manager.inspect("held").await.ok();
        eventually("it answers", inspected).await;
    }
    // Its pool asks a connection for a sign of life before it lends it again.
    for _ in 0..10 {
        store.number("SELECT COUNT(*) FROM dlock_lock").await;
    }
    held
}

/// Whether this comes true within that time.
pub(super) async fn soon(time: Duration, mut check: impl AsyncFnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if check().await {
            return true;
        }
        if begun.elapsed() > time {
            return false;
        }
        sleep(STEP).await;
    }
}

/// Asks for a lock over a connection that carries no answers any more, and returns when it is had.
/// On a slow machine, its process may do something by itself first, whose answer never comes: then
/// the lock is given back, and asked for once more.
pub(super) async fn had_without_an_answer<S: FarTables>(
    store: &S,
    judge: &LockManager,
    key: &str,
    ask: impl Fn() -> JoinHandle<Result<LockGuard, LockError>>,
) -> JoinHandle<Result<LockGuard, LockError>> {
    eventually("it is had, and not told so", async || {
        store.proxy().swallow_replies(true);
        let asked = ask();
        let is_had = async || judge.inspect(key).await.expect("inspect").is_some();
        if soon(SOON, is_had).await {
            return Some(asked);
        }
        store.proxy().swallow_replies(false);
        let had = within(HANG, asked).await.expect("no panic");
        had.expect("the lock").release().await.expect("the release");
        None
    })
    .await
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
    let ask = || tokio::spawn(reader.lock("key").read().try_acquire());
    let asked = had_without_an_answer(store, &writer, "key", ask).await;
    let waiting = tokio::spawn(writer.lock("key").acquire());
    let waiters = async || store.waiters(&writer, "key").await;
    until("a writer waits", waiters, |&waiters| waiters == 1).await;
    store.proxy().swallow_replies(false);

    let held = within(HANG, asked).await.expect("no panic");
    let held = held.expect("it has the lock");
    assert!(held.is_held() && !waiting.is_finished());
    // For a moment it counts as dead, if the machine stood still.
    until("it waits still", waiters, |&waiters| waiters == 1).await;
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
    let ask = || tokio::spawn(asks.lock("key").permits(1).try_acquire());
    let asked = had_without_an_answer(store, &other, "key", ask).await;
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
    let token = async || {
        let token = "SELECT COALESCE(MAX(token), 0) FROM dlock_lock WHERE name = 'key'";
        store.number(token).await
    };
    let before = eventually("it is given back", async || {
        let start = token().await;
        store.proxy().freeze();
        let left = manager.lock("key");
        let left = left.acquire_within(Duration::from_millis(100)).await;
        left.map(drop).expect_err("no connection carries anything");
        // It takes a request timeout until there is another connection.
        if soon(2 * SOON, async || token().await > start).await {
            return Some(token().await);
        }
        // On a slow machine it may leave before it has sent anything: then once more.
        store.proxy().thaw();
        healed_at(&manager, "used").await;
        None
    })
    .await;
    store.proxy().thaw();
    until("what was sent is run", token, |&token| token > before).await;
    let left = async || judge.inspect("key").await.expect("inspect");
    until("nobody has it", left, Option::is_none).await;
}
