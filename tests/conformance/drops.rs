//! Guarantee 8: a waiter that is dropped at any await leaves neither a lock nor a place in a
//! queue.

use std::cell::Cell;
use std::time::Duration;

use dlock::{LockError, LockKey, LockManager};
use tokio::time::{sleep, timeout};

use super::{Store, had, held, nothing_left, process, queued};
use crate::support::locks::served;
use crate::support::log::Log;
use crate::support::polls::{Polled, drop_at_poll, drop_outside, outlive_runtime};
use crate::support::wait::{HANG, STEP, until, within};

/// Repeats this with one more poll each time, until it returns that nothing was dropped.
async fn at_every_poll(mut dropped_at: impl AsyncFnMut(usize) -> bool) {
    // No request needs more polls.
    for polls in 1..200 {
        if !dropped_at(polls).await {
            return;
        }
    }
    panic!("it takes too many polls");
}

/// Whether it was dropped. Otherwise it must have succeeded.
fn is_dropped(ended: Polled<Result<(), LockError>>) -> bool {
    match ended {
        Polled::Done(answer) => answer.expect("it ends well"),
        Polled::Dropped => return true,
        Polled::Waiting => panic!("it is not to be waited for"),
    }
    false
}

/// How long a waiter for a held lock may wait.
const WAIT: Duration = Duration::from_millis(40);

/// A request whose body awaits as well, so that it is dropped there too.
async fn lock_and_yield(manager: &LockManager, key: impl Into<LockKey>) -> Result<(), LockError> {
    manager.lock(key).run(tokio::task::yield_now()).await
}

/// A new manager, whose first request also opens the connection of its runtime, or a manager that
/// has already done so.
async fn new_or_kept(store: &dyn Store, kept: Option<&LockManager>) -> LockManager {
    match kept {
        Some(kept) => kept.clone(),
        None => process(store).await,
    }
}

pub(crate) async fn dropped_at_every_poll_of_a_free_lock(store: &mut dyn Store) {
    let other = process(store).await;
    for kept in [None, Some(&other)] {
        at_every_poll(async |polls| {
            let manager = new_or_kept(store, kept).await;
            let ended = drop_at_poll(lock_and_yield(&manager, "key"), polls, HANG).await;
            // The dropped request does not hold up the next one.
            let next = within(HANG, lock_and_yield(&other, "key")).await;
            next.unwrap_or_else(|error| panic!("dropped at poll {polls}: {error}"));
            nothing_left(&other).await;
            is_dropped(ended)
        })
        .await;
    }
}

pub(crate) async fn dropped_at_every_poll_of_a_held_lock(store: &mut dyn Store) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = held(holder.lock("key")).await;
    for kept in [None, Some(&other)] {
        at_every_poll(async |polls| {
            let manager = new_or_kept(store, kept).await;
            let ended = drop_at_poll(lock_and_yield(&manager, "key"), polls, WAIT).await;
            queued(store, &holder, "key", 0).await;
            let waits = matches!(ended, Polled::Waiting);
            if waits || kept.is_none() {
                // A busy store may not have run the command yet: there may be a place later,
                // until it is given back.
                within(HANG, manager.shutdown()).await;
            }
            assert!(waits || is_dropped(ended), "a held lock was had");
            !waits
        })
        .await;
    }
    assert!(guard.is_held());
    guard.release().await.expect("the release");
    assert!(
        holder.list("").await.expect("list").is_empty(),
        "a waiter that is gone was let in"
    );
}

/// The grant and the drop happen at the same time.
pub(crate) async fn dropped_at_every_poll_as_the_lock_comes_free(store: &mut dyn Store) {
    let (holder, other) = (process(store).await, process(store).await);
    for kept in [None, Some(&other), Some(&holder)] {
        at_every_poll(async |polls| {
            let guard = held(holder.lock("key")).await;
            let manager = new_or_kept(store, kept).await;
            let is_over = Cell::new(false);
            let waiter = async {
                let ended = drop_at_poll(lock_and_yield(&manager, "key"), polls, HANG).await;
                is_over.set(true);
                ended
            };
            let release = async {
                // A waiter of the holder's own process waits in that process.
                if kept.is_none_or(|kept| !std::ptr::eq(kept, &holder)) {
                    let there = async || is_over.get() || store.waiters(&holder, "key").await == 1;
                    until("the waiter waits", there, |&there| there).await;
                }
                guard.release().await.expect("the release");
            };
            let (ended, ()) = tokio::join!(waiter, release);
            let next = within(HANG, lock_and_yield(&holder, "key")).await;
            next.unwrap_or_else(|error| panic!("dropped at poll {polls}: {error}"));
            nothing_left(&holder).await;
            is_dropped(ended)
        })
        .await;
    }
}

pub(crate) async fn a_dropped_waiter_does_not_hold_up_the_next(store: &mut dyn Store) {
    let holder = process(store).await;
    let guard = held(holder.lock("key")).await;
    let mut waiting = Vec::new();
    for number in 0..6 {
        let manager = process(store).await;
        waiting.push(tokio::spawn(async move {
            lock_and_yield(&manager, "key").await
        }));
        queued(store, &holder, "key", number + 1).await;
    }
    // The first, one in the middle, and the last.
    for number in [5, 2, 0] {
        waiting.remove(number).abort();
    }
    queued(store, &holder, "key", 3).await;
    guard.release().await.expect("the release");
    for waiter in waiting {
        served(waiter).await;
    }
    nothing_left(&holder).await;
}

pub(crate) async fn dropped_at_every_poll_of_several_keys(store: &mut dyn Store) {
    let (holder, other) = (process(store).await, process(store).await);
    let guard = held(holder.lock("b")).await;
    at_every_poll(async |polls| {
        let all = lock_and_yield(&other, ["a", "b", "c"]);
        let ended = drop_at_poll(all, polls, WAIT).await;
        // `a` was had, `b` is held by somebody else, `c` was never reached.
        queued(store, &holder, "b", 0).await;
        for key in ["a", "c"] {
            within(HANG, lock_and_yield(&holder, key))
                .await
                .expect("the lock");
        }
        let waits = matches!(ended, Polled::Waiting);
        assert!(waits || is_dropped(ended), "a held lock was had");
        !waits
    })
    .await;
    guard.release().await.expect("the release");
    nothing_left(&holder).await;
}

/// The background completes what the caller began. The store may have done it already and answer
/// that nobody holds the lock; this is not a loss.
pub(crate) async fn dropped_at_every_poll_of_a_release(store: &mut dyn Store) {
    let warnings = Log::warnings();
    let (manager, other) = (process(store).await, process(store).await);
    // Dropped at once, or when the store has done it but the caller does not know.
    for patience in [Duration::ZERO, WAIT] {
        at_every_poll(async |polls| {
            let key = format!("released-halfway:{polls}");
            let guard = held(manager.lock(&*key)).await;
            let mut release = Box::pin(guard.release());
            let ended = drop_at_poll(release.as_mut(), polls, HANG).await;
            let done = async {
                while other.inspect(&*key).await.expect("inspect").is_some() {
                    sleep(STEP).await;
                }
            };
            if matches!(ended, Polled::Dropped) && !patience.is_zero() {
                // After few polls it may not have been sent.
                let _ = timeout(patience, done).await;
            }
            drop(release);
            had(&other, &key).await;
            is_dropped(ended)
        })
        .await;
    }
    // Every release has been answered then.
    manager.shutdown().await;
    let told = warnings.lines_with("released-halfway:");
    assert!(told.is_empty(), "{told:#?}");
    nothing_left(&other).await;
}

/// The caller's runtime ends, and the request is dropped later, by a thread without a runtime.
/// The manager's runtime gives back what it has left.
pub(crate) async fn dropped_at_every_poll_outside_of_a_runtime(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    at_every_poll(async |polls| {
        let request = Box::pin(manager.lock("key").acquire());
        let (ended, request) = outlive_runtime(request, polls, HANG).await;
        let done = matches!(ended, Polled::Done(Ok(_)));
        assert!(done || matches!(ended, Polled::Dropped), "{ended:?}");
        drop_outside((ended, request));
        nothing_left(&other).await;
        !done
    })
    .await;
    at_every_poll(async |polls| {
        let guard = held(other.lock("key")).await;
        let request = Box::pin(manager.lock("key").acquire());
        let (ended, request) = outlive_runtime(request, polls, 5 * WAIT).await;
        let waits = matches!(ended, Polled::Waiting);
        assert!(waits || matches!(ended, Polled::Dropped), "{ended:?}");
        // It may be the turn of a request that is no longer polled.
        guard.release().await.expect("the release");
        drop_outside(request);
        nothing_left(&other).await;
        !waits
    })
    .await;
}
