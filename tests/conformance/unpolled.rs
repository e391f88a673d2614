//! Calls that are not polled when their turn comes, such as an arm of a `select!` whose other arm
//! runs long, or one of many in `buffer_unordered`. They delay nobody for more than a few
//! seconds, and queue again when they are polled. (A lease that would have to expire takes twenty
//! times as long as a test may.)

use std::pin::Pin;

use dlock::{LockError, LockGuard};
use tokio::time::Instant;

use super::{Store, had, nothing_left, process, queued};
use crate::support::locks::{held, served, wants};
use crate::support::polls::{Polled, drive_until, leave_at_poll, poll_once};
use crate::support::wait::{HANG, until, within};

type Call = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

/// A call that was not polled for a while is served like any other.
async fn is_served_again(call: Call) {
    let guard = within(HANG, call).await.expect("the lock");
    guard.release().await.expect("the release");
}

/// Or it returns an answer from the time when it was not polled: that another call was faster.
async fn has_an_answer(call: Call) {
    match within(HANG, call).await {
        Ok(guard) => guard.release().await.expect("the release"),
        Err(LockError::Busy { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
}

/// The store answers a call that is not polled.
pub(crate) async fn a_lock_that_nobody_comes_for_is_passed_on(store: &mut dyn Store) {
    let (here, there) = (process(store).await, process(store).await);
    let round = async |key, read, tries| {
        if read && !here.capabilities().read_write {
            return;
        }
        // Opens the connections, and lets the store set up what it needs.
        for manager in [&here, &there] {
            had(manager, key).await;
        }
        let request = wants(here.lock(key), read);
        let mut call: Call = if tries {
            Box::pin(request.try_acquire())
        } else {
            Box::pin(request.acquire())
        };
        if let Polled::Done(answer) = leave_at_poll(&mut call, 1, HANG).await {
            // The store answered at once.
            drop(answer.expect("the lock"));
            return;
        }
        // First a task of its own process, then one of another process.
        for manager in [&here, &there] {
            had(manager, key).await;
        }
        if tries {
            has_an_answer(call).await;
        } else {
            is_served_again(call).await;
        }
    };
    tokio::join!(
        round("waits", false, false),
        round("tries", false, true),
        round("reads", true, false),
        round("tries to read", true, true),
    );
    nothing_left(&here).await;
}

pub(crate) async fn a_place_that_nobody_comes_for_is_passed_on(store: &mut dyn Store) {
    let (here, there) = (process(store).await, process(store).await);
    let round = async |key, read| {
        if read && !here.capabilities().read_write {
            return;
        }
        let guard = held(there.lock(key)).await;
        let mut call: Call = Box::pin(wants(here.lock(key), read).acquire());
        // Polled until it waits, and then no more.
        drive_until(&mut call, queued(store, &there, key, 1)).await;
        let local = tokio::spawn(here.lock(key).run(async {}));
        guard.release().await.expect("the release");
        had(&there, key).await;
        served(local).await;
        is_served_again(call).await;
    };
    tokio::join!(round("writes", false), round("reads", true));
    nothing_left(&here).await;
}

pub(crate) async fn a_hand_over_that_nobody_comes_for_is_passed_on(store: &mut dyn Store) {
    let (here, there) = (process(store).await, process(store).await);
    let guard = held(there.lock("key")).await;
    let first = tokio::spawn(here.lock("key").run(async {}));
    queued(store, &there, "key", 1).await;
    let mut call: Call = Box::pin(here.lock("key").acquire());
    poll_once(&mut call).await;
    // On a slow machine, some of the time has passed when `first` is seen to have ended.
    let start = Instant::now();
    guard.release().await.expect("the release");
    served(first).await;
    // The lock is held for a call that does not collect it, which the store shows.
    let list = async || there.list("").await.expect("list");
    until("the lock is given back", list, Vec::is_empty).await;
    assert!(start.elapsed().as_secs() >= 1, "it was not handed over");
    for manager in [&here, &there] {
        had(manager, "key").await;
    }
    is_served_again(call).await;
    nothing_left(&here).await;
}

pub(crate) async fn what_a_sleeper_has_of_several_keys_is_passed_on(store: &mut dyn Store) {
    let (here, there) = (process(store).await, process(store).await);
    let guard = held(there.lock("b")).await;
    let mut call: Call = Box::pin(here.lock(["a", "b"]).acquire());
    drive_until(&mut call, queued(store, &there, "b", 1)).await;
    // `a` must become free although `b` is still held.
    had(&there, "a").await;
    guard.release().await.expect("the release");
    for key in ["a", "b"] {
        had(&there, key).await;
    }
    is_served_again(call).await;
    nothing_left(&here).await;
}
