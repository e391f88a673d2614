//! Who waits for permits, as rows of the queue.

use dlock_conformance::process;

use super::Tables;
use crate::support::locks::{held, is_busy, queued, served, shown};
use crate::support::wait::until;

/// Puts these in the queue, in this order, as waiters of a process that the others take for
/// alive. Whether the row of the lock was still there, to say that somebody waits.
pub(crate) async fn waits_there<S: Tables>(store: &S, places: &[(&str, char)]) -> bool {
    let alive = format!(
        "INSERT INTO dlock_process (process, alive_until) VALUES ('there', {} + 600000)",
        S::NOW
    );
    store.execute(&alive).await;
    for (ticket, (owner, mode)) in (1..).zip(places) {
        let place = format!(
            "INSERT INTO dlock_queue (name, ticket, owner, mode, process)
             VALUES ('key', {ticket}, '{owner}', '{mode}', 'there')"
        );
        store.execute(&place).await;
    }
    let waited = "UPDATE dlock_lock SET waited = 1 WHERE name = 'key'";
    store.execute(waited).await == 1
}

/// The same with a lock that somebody holds: nobody cleans its row away.
pub(crate) async fn wait_there<S: Tables>(store: &S, places: &[(&str, char)]) {
    assert!(waits_there(store, places).await, "the lock has no row");
}

/// There is room for it even when they come, so that they have lost nothing.
pub(crate) async fn who_goes_past_permits_leaves_them_their_places<S: Tables>(store: &mut S) {
    let manager = process(store).await;
    let permits = |most| manager.lock("key").permits(most);
    let first = held(permits(5)).await;
    wait_there(store, &[("1.1/5", 'p'), ("1.2/5", 'p')]).await;
    let second = permits(5).try_acquire().await.expect("there is room");
    // With those who wait there would be four.
    is_busy(permits(4).try_acquire().await);
    // It would take the room of those who wait.
    is_busy(permits(6).try_acquire().await);
    is_busy(manager.lock("key").read().try_acquire().await);
    is_busy(manager.lock("key").try_acquire().await);
    let third = permits(5).try_acquire().await.expect("there is room");
    is_busy(permits(5).try_acquire().await);
    let places = "SELECT COUNT(*) FROM dlock_queue WHERE process = 'there'";
    assert_eq!(store.number(places).await, 2);
    assert_eq!(shown(&manager, "key").await.holders.len(), 3);
    for guard in [first, second, third] {
        guard.release().await.expect("the release");
    }
}

/// Readers before it are let in whatever becomes of it: it counts them, and waits for none.
pub(crate) async fn a_permit_counts_the_readers_before_it<S: Tables>(store: &mut S) {
    let manager = process(store).await;
    let permits = |most| manager.lock("key").permits(most);
    let first = held(permits(5)).await;
    wait_there(store, &[("1.1", 'r'), ("1.2", 'r')]).await;
    is_busy(permits(3).try_acquire().await);
    let second = permits(4).try_acquire().await.expect("there is room");
    let places = "SELECT COUNT(*) FROM dlock_queue WHERE process = 'there'";
    assert_eq!(store.number(places).await, 2);
    for guard in [first, second] {
        guard.release().await.expect("the release");
    }
}

/// It does not fit, and nobody behind it may go past it, until it is known to have died. Of
/// that no message tells.
pub(crate) async fn a_dead_permit_at_the_head_keeps_nobody<S: Tables>(store: &mut S) {
    let (holder, other) = (process(store).await, process(store).await);
    let first = held(holder.lock("key").read()).await;
    wait_there(store, &[("1.1/1", 'p')]).await;
    let permit = tokio::spawn(other.lock("key").permits(2).acquire());
    queued(&holder, "key", 2).await;
    let reader = tokio::spawn(other.lock("key").read().acquire());
    queued(&holder, "key", 3).await;
    let dies = "UPDATE dlock_process SET alive_until = 1 WHERE process = 'there'";
    assert!(!permit.is_finished() && !reader.is_finished());
    assert_eq!(store.execute(dies).await, 1);
    let behind = [served(permit).await, served(reader).await];
    assert_eq!(shown(&holder, "key").await.holders.len(), 3);
    drop((first, behind));
    let left = async || store.number("SELECT COUNT(*) FROM dlock_queue").await;
    until("its place is gone", left, |&left| left == 0).await;
}

/// Somebody else wrote it. It keeps out whoever shares, and is an error for nobody.
pub(crate) async fn a_number_that_is_none_fails_nobody<S: Tables>(store: &mut S) {
    let manager = process(store).await;
    let first = held(manager.lock("key").permits(5)).await;
    wait_there(store, &[("nobody", 'p')]).await;
    is_busy(manager.lock("key").permits(5).try_acquire().await);
    is_busy(manager.lock("key").read().try_acquire().await);
    is_busy(manager.lock("key").try_acquire().await);
    let gone = "DELETE FROM dlock_queue WHERE owner = 'nobody'";
    assert_eq!(store.execute(gone).await, 1);
    let second = manager.lock("key").permits(5).try_acquire().await;
    let second = second.expect("there is room");
    for guard in [first, second] {
        guard.release().await.expect("the release");
    }
}

/// A waiter of this process who left in an outage.
pub(crate) async fn the_place_of_a_permit_that_left_is_given_up<S: Tables>(store: &mut S) {
    let (holder, other) = (process(store).await, process(store).await);
    let first = held(holder.lock("key").permits(3)).await;
    let writer = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 1).await;
    let left = "INSERT INTO dlock_queue (name, ticket, owner, mode, process)
         SELECT name, 0 - 1, '1.1/1', 'p', process FROM dlock_queue";
    assert_eq!(store.execute(left).await, 1);
    let places = async || store.number("SELECT COUNT(*) FROM dlock_queue").await;
    until("it is given up", places, |&places| places == 1).await;
    assert!(!writer.is_finished());
    first.release().await.expect("the release");
    drop(served(writer).await);
}
