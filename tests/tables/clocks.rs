//! Rows that say something else than the holders think: an operator has changed
//! them, or the database's clock was set.

use super::Tables;
use crate::support::wait::{HANG, eventually, until, within};
use dlock::{LockGuard, LockManager};
use dlock_conformance::process;

/// A reader that renews soon, and the row of whose lock was changed then. It must not have ended
/// meanwhile: its row may be gone.
async fn read_until_changed<S: Tables>(store: &S, reader: &LockManager, change: &str) -> LockGuard {
    eventually("its row is still there", async || {
        let lock = reader.lock("key").read().ttl(store.short_ttl());
        let held = within(HANG, lock.acquire()).await.expect("the lock");
        (store.execute(change).await == 1).then_some(held)
    })
    .await
}

/// By a statement that leaves the readers' own rows as they are.
pub(crate) async fn a_reader_learns_that_the_lock_was_taken_away<S: Tables>(store: &mut S) {
    let (reader, writer) = (process(store).await, process(store).await);
    let taken = "UPDATE dlock_lock SET owner = '', expires_at = 0 WHERE name = 'key'";
    let held = read_until_changed(store, &reader, taken).await;
    let next = within(HANG, writer.lock("key").acquire()).await;
    let next = next.expect("the lock");
    within(HANG, held.lost()).await;
    assert!(next.is_held());
    next.release().await.expect("it is still held");
}

/// A writer was let in when the clock was ahead; then the clock was set back.
pub(crate) async fn a_reader_learns_that_a_writer_got_the_lock<S: Tables>(store: &mut S) {
    let reader = process(store).await;
    let granted = format!(
        "UPDATE dlock_lock SET mode = 'w', owner = 'ahead', expires_at = {} + 600000
         WHERE name = 'key'",
        S::NOW
    );
    let held = read_until_changed(store, &reader, &granted).await;
    within(HANG, held.lost()).await;
    let shown = reader.inspect("key").await.expect("inspect");
    assert_eq!(shown.expect("the writer").holders[0].owner, "ahead");
}

/// A process whose lock was given back by a clock that was ahead.
async fn given_back_ahead<S: Tables>(store: &S) -> LockManager {
    let manager = process(store).await;
    let ahead = format!(
        "UPDATE dlock_lock SET expires_at = {} + 600000 WHERE name = 'key'",
        S::NOW
    );
    eventually("its row is still there", async || {
        let guard = manager.lock("key").acquire().await.expect("the lock");
        guard.release().await.expect("the release");
        (store.execute(&ahead).await == 1).then_some(())
    })
    .await;
    manager
}

/// It was given back by a clock that was ahead.
pub(crate) async fn a_lock_that_nobody_holds_is_free_whatever_the_clock_says<S: Tables>(
    store: &mut S,
) {
    let manager = given_back_ahead(store).await;
    let shown = manager.inspect("key").await.expect("inspect");
    assert!(shown.is_none(), "{shown:?}");
    let guard = within(HANG, manager.lock("key").try_acquire()).await;
    let guard = guard.expect("nobody holds it");
    guard.release().await.expect("the release");
}

/// The same: its row is not kept until then.
pub(crate) async fn a_free_lock_is_cleaned_away_whatever_the_clock_says<S: Tables>(store: &mut S) {
    let _cleans = given_back_ahead(store).await;
    let rows = async || store.number("SELECT COUNT(*) FROM dlock_lock").await;
    until("it is cleaned away", rows, |&rows| rows == 0).await;
}

/// What its readers have left is not kept for as long as it is held.
pub(crate) async fn what_dead_readers_have_left_is_cleaned_away_under_a_writer<S: Tables>(
    store: &mut S,
) {
    let manager = process(store).await;
    let held = manager.lock("key").ttl(20 * HANG).acquire().await;
    let held = held.expect("the lock");
    let dead = "INSERT INTO dlock_reader (name, owner, since, expires_at)
        VALUES ('key', 'dead', 0, 1)";
    assert_eq!(store.execute(dead).await, 1);
    let readers = async || store.number("SELECT COUNT(*) FROM dlock_reader").await;
    until("it is cleaned away", readers, |&readers| readers == 0).await;
    held.release().await.expect("it is held");
}

/// A lock that was given back by a clock that was ahead, with somebody who waits, and whom no
/// message reaches.
pub(crate) async fn a_free_lock_is_found_whatever_the_clock_says<S: Tables>(store: &mut S) {
    let (holder, other) = (process(store).await, process(store).await);
    let held = holder.lock("key").acquire().await.expect("the lock");
    let waiting = tokio::spawn(other.lock("key").acquire());
    let waiters = async || store.waiters(&holder, "key").await;
    until("it waits", waiters, |&waiters| waiters == 1).await;
    let ahead = format!(
        "UPDATE dlock_lock SET owner = '', expires_at = {} + 600000 WHERE name = 'key'",
        S::NOW
    );
    assert_eq!(store.execute(&ahead).await, 1);
    let next = within(HANG, waiting).await.expect("no panic");
    let next = next.expect("the lock");
    drop(held);
    next.release().await.expect("the release");
}
