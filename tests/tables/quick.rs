//! A lone lock that this process had a moment ago: one statement takes it, and one gives
//! it back.

use std::time::{Duration, Instant};

use dlock::LockError;
use dlock_conformance::{connect, process};

use super::before::CLAIM;
use super::late::{SOON, calm, had_without_an_answer, soon};
use super::permits::waits_there;
use super::{FarTables, Tables};
use crate::support::locks::{
    free, had, healed_at, held, impatient, is_busy, nothing_left, queued, served,
};
use crate::support::polls::{Polled, leave_at_poll};
use crate::support::wait::{HANG, eventually, within};

/// It is free, and the next in the queue has not come for it yet.
pub(crate) async fn who_had_it_a_moment_ago_does_not_overtake<S: Tables>(store: &mut S) {
    let manager = process(&*store).await;
    // Tables that are new are cleaned at once, and again after seconds. Else the row of the free
    // lock could go before anybody waits, as it still may on a machine that stands still.
    let cleaned = format!("UPDATE dlock_meta SET cleaned_at = {}", S::NOW);
    eventually("somebody waits while its row is there", async || {
        // What a try before has left.
        for table in ["dlock_queue", "dlock_process"] {
            let left = format!("DELETE FROM {table} WHERE process = 'there'");
            store.execute(&left).await;
        }
        assert_eq!(store.execute(&cleaned).await, 1);
        let begun = Instant::now();
        had(&manager, "key").await;
        let waits = waits_there(&*store, &[("1.1", 'w')]).await;
        let answer = manager.lock("key").try_acquire().await;
        if begun.elapsed() >= CLAIM {
            // Who does not come for so long has lost its turn.
            drop(answer);
            return None;
        }
        waits.then(|| is_busy(answer))
    })
    .await;
}

/// It has sent something, and nobody comes for the answer. There is a single connection, or
/// there are few.
pub(crate) async fn a_call_that_stands_still_keeps_no_connection<S: Tables>(store: &mut S) {
    let manager = process(store).await;
    for _ in 0..5 {
        had(&manager, "key").await;
        let mut call = Box::pin(manager.lock("key").acquire());
        if let Polled::Done(answer) = leave_at_poll(&mut call, 1, HANG).await {
            answer.expect("the lock").release().await.expect("held");
            continue;
        }
        for other in ["other", "a third", "other"] {
            within(HANG, had(&manager, other)).await;
        }
        let guard = within(HANG, call).await.expect("the lock");
        guard.release().await.expect("held");
    }
    nothing_left(&manager).await;
}

/// Its statement does nothing, since somebody waits; and nobody comes to hear that.
pub(crate) async fn a_release_that_stands_still_lets_the_next_in<S: Tables>(store: &mut S) {
    let manager = process(&*store).await;
    let other = process(&*store).await;
    for _ in 0..3 {
        had(&manager, "key").await;
        let guard = held(manager.lock("key")).await;
        let next = tokio::spawn(other.lock("key").acquire());
        queued(&other, "key", 1).await;
        let mut release = Box::pin(guard.release());
        let left = leave_at_poll(&mut release, 1, HANG).await;
        served(next).await.release().await.expect("held");
        match left {
            Polled::Done(released) => released.expect("it was held"),
            Polled::Dropped | Polled::Waiting => release.await.expect("it was held"),
        }
    }
    nothing_left(&manager).await;
}

/// Somebody keeps its row for longer than anybody waits.
pub(crate) async fn a_row_that_is_kept_is_locked_for_nobody_later<S: FarTables>(store: &mut S) {
    const SHORT: Duration = Duration::from_secs(1);
    let config = || store.direct().request_timeout(SHORT).ttl(20 * HANG);
    let manager = impatient(config).await;
    // Nobody cleans it away.
    let keeper = loop {
        healed_at(&manager, "key").await;
        let keeper = store.keep("key").await;
        let rows = "SELECT COUNT(*) FROM dlock_lock WHERE name = 'key'";
        if store.number(rows).await == 1 {
            break keeper;
        }
    };
    let error = within(HANG, manager.lock("key").acquire()).await.map(drop);
    let error = error.expect_err("somebody keeps its row");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    drop(keeper);
    let direct = connect(store.direct()).await;
    free(&direct, "key").await;
    nothing_left(&direct).await;
}

/// Over a connection that there is, what is sent comes through.
pub(crate) async fn a_grant_whose_answer_is_lost_is_given_back<S: FarTables>(store: &mut S) {
    let manager = connect(store.narrow(Duration::from_secs(20)).ttl(20 * HANG)).await;
    let direct = connect(store.direct()).await;
    let _calm = calm(store, &manager).await;
    had(&manager, "key").await;
    let ask = || tokio::spawn(manager.lock("key").acquire());
    let asked = had_without_an_answer(store, &direct, "key", ask).await;
    asked.abort();
    store.proxy().swallow_replies(false);
    free(&direct, "key").await;
}

pub(crate) async fn a_release_whose_answer_is_lost_is_done<S: FarTables>(store: &mut S) {
    let manager = connect(store.narrow(Duration::from_secs(20)).ttl(20 * HANG)).await;
    let direct = connect(store.direct()).await;
    let _calm = calm(store, &manager).await;
    let released = eventually("it is given back, and not told so", async || {
        let guard = held(manager.lock("key")).await;
        store.proxy().swallow_replies(true);
        let released = tokio::spawn(guard.release());
        let is_free = async || direct.inspect("key").await.expect("inspect").is_none();
        if soon(SOON, is_free).await {
            return Some(released);
        }
        // On a slow machine, the answer that was lost is that to something else.
        store.proxy().swallow_replies(false);
        let _ = within(HANG, released).await.expect("no panic");
        None
    })
    .await;
    store.proxy().swallow_replies(false);
    // Whether it was held then is not known any more.
    let released = within(HANG, released).await.expect("no panic");
    let is_known = matches!(released, Ok(()) | Err(LockError::Lost { .. }));
    assert!(is_known, "{released:?}");
    had(&manager, "key").await;
}
