//! Places in the queue that are not what their process takes them for.

use dlock::LockError;
use dlock_conformance::process;

use super::Tables;
use crate::support::wait::{HANG, until, within};

/// A process has a place that none of its waiters knows of, from a waiter that
/// left in an outage, and one of its waiters has lost its place. It counts as
/// many as it should.
pub(crate) async fn a_place_without_a_waiter_is_given_up_and_hides_no_other<S: Tables>(
    store: &mut S,
) {
    let (holder, other) = (process(store).await, process(store).await);
    let stays = holder.lock("stays").acquire().await.expect("the lock");
    let held = holder.lock("key").acquire().await.expect("the lock");
    let waits_on = tokio::spawn(other.lock("stays").acquire());
    let waiting = tokio::spawn(other.lock("key").acquire());
    let places = "SELECT COUNT(*) FROM dlock_queue";
    let both = async || store.number(places).await;
    until("both wait", both, |&places| places == 2).await;
    store
        .execute(
            "INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited)
             VALUES ('left', 64, 'w', '', 0, 1)",
        )
        .await;
    // One statement: the process has as many places before it as after it.
    let moved = "UPDATE dlock_queue SET name = 'left', owner = 'nobody' WHERE name = 'key'";
    assert_eq!(store.execute(moved).await, 1);
    held.release().await.expect("the release");
    let next = within(HANG, waiting).await.expect("no panic");
    let next = next.expect("the lock");
    // While it has a waiter, others take it for alive with all of its places.
    let of_nobody = "SELECT COUNT(*) FROM dlock_queue WHERE owner = 'nobody'";
    let left = async || store.number(of_nobody).await;
    until("the place is given up", left, |&places| places == 0).await;
    assert!(!waits_on.is_finished());
    stays.release().await.expect("the release");
    let stays = within(HANG, waits_on).await.expect("no panic");
    for guard in [next, stays.expect("the lock")] {
        guard.release().await.expect("the release");
    }
}

/// A clone of a machine takes the waiters of its twin for such as have left. One
/// that has waited at two of its beats is granted the lock before it is taken
/// out of the queue.
pub(crate) async fn a_place_that_is_given_up_ends_no_lock_of_its_owner<S: Tables>(store: &mut S) {
    let (twin, clone) = (process(store).await, process(store).await);
    let stays = twin.lock("stays").acquire().await.expect("the lock");
    let waits_on = tokio::spawn(clone.lock("stays").acquire());
    let places = "SELECT COUNT(*) FROM dlock_queue";
    let beats = async || store.number(places).await;
    until("it waits", beats, |&places| places == 1).await;
    let writer = twin.lock("written").acquire().await.expect("the lock");
    let reader = twin.lock("read").read().acquire().await.expect("the lock");
    // The clone is shown the places that they had, as it was before the grants.
    let shown = "INSERT INTO dlock_queue (name, ticket, owner, mode, process)
         SELECT l.name, 1, l.owner, l.mode, q.process FROM dlock_lock l, dlock_queue q
         WHERE q.name = 'stays' AND l.name <> 'stays'";
    assert_eq!(store.execute(shown).await, 2);
    let shown = "SELECT COUNT(*) FROM dlock_queue WHERE name <> 'stays'";
    let left = async || store.number(shown).await;
    until("the places are given up", left, |&places| places == 0).await;
    for key in ["written", "read"] {
        let tried = within(HANG, clone.lock(key).try_acquire()).await;
        let error = tried.map(drop).expect_err("its body runs");
        assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
    }
    stays.release().await.expect("the release");
    let stays = within(HANG, waits_on).await.expect("no panic");
    for guard in [writer, reader, stays.expect("the lock")] {
        guard.release().await.expect("it is still held");
    }
}
