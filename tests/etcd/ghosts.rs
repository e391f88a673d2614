//! Requests whose answer was lost: they may have been done, or may be yet.

use std::time::Duration;

use crate::EtcdStore;
use crate::harness::{connect, direct, free, healed, lease_of, places, unavailable};
use crate::support::wait::{HANG, until, within};

/// The key was written and nobody was told. Its lease lives on for other locks
/// of the process, so it does not end by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_had_unheard_is_given_back() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let judge = connect(&direct(&store)).await;
    let held = manager.lock("held").acquire().await.expect("the lock");
    for (number, wait) in [true, false, true].into_iter().enumerate() {
        let key = format!("key:{number}");
        store.proxy.swallow_replies(true);
        let request = manager.lock(&*key);
        let asking = tokio::spawn(async move {
            match wait {
                true => request.acquire().await.map(drop),
                false => request.try_acquire().await.map(drop),
            }
        });
        let inspect = async || judge.inspect(&*key).await.expect("inspect");
        until("the request has arrived", inspect, Option::is_some).await;
        unavailable(within(HANG, asking).await.expect("no panic"));
        store.proxy.swallow_replies(false);
        free(&judge, &key).await;
        healed(&manager).await;
    }
    assert!(held.is_held());
    held.release().await.expect("the release");
    assert_eq!(store.records().await, 0);
}

/// The same as a request that arrives when its caller has long given up: a
/// network that holds it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_late_takes_nothing() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let judge = connect(&direct(&store)).await;
    let held = manager.lock("held").acquire().await.expect("the lock");
    store.proxy.stall(true);
    unavailable(within(HANG, manager.lock("key").acquire()).await);
    assert!(judge.inspect("key").await.expect("inspect").is_none());
    store.proxy.stall(false);
    healed(&manager).await;
    free(&judge, "key").await;
    // Not some time later either.
    tokio::time::sleep(Duration::from_millis(500)).await;
    free(&judge, "key").await;
    assert!(held.is_held());
}

/// The same of a lock that `min_hold` keeps after its body, under another lease:
/// what arrives late is attached to the first one, which others go on using.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_after_min_hold_takes_nothing() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let judge = connect(&direct(&store)).await;
    let held = manager.lock("held").acquire().await.expect("the lock");
    let first = lease_of(&store.server, &places(&store, "held").await[0]).await;

    // Its answer is lost, and it is repeated: it may be done twice.
    store.proxy.swallow_replies(true);
    let request = manager.lock("key").min_hold(Duration::from_secs(3));
    let run = tokio::spawn(async move { request.run(async {}).await });
    let inspect = async || judge.inspect("key").await.expect("inspect");
    until("the request has arrived", inspect, Option::is_some).await;
    store.proxy.swallow_replies(false);
    within(HANG, run)
        .await
        .expect("no panic")
        .expect("the lock");
    let key = &places(&store, "key").await[0];
    assert_ne!(lease_of(&store.server, key).await, first, "it is kept");
    let get = ["get", "--print-value-only", key];
    let value = store.server.control(&get).await;
    free(&judge, "key").await;

    // As the request would that was sent first.
    let lease = format!("--lease={first}");
    let put = ["put", key, value.trim_end(), &lease];
    store.server.control(&put).await;
    free(&judge, "key").await;
    assert!(held.is_held());
}

/// A release whose answer was lost has been done all the same, or will be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_was_not_heard_of_is_made_up_for() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let judge = connect(&direct(&store)).await;
    let kept = manager.lock("kept").acquire().await.expect("the lock");
    let guard = manager.lock("key").acquire().await.expect("the lock");
    store.proxy.refuse(true);
    unavailable(within(HANG, guard.release()).await);
    store.proxy.refuse(false);
    free(&judge, "key").await;
    assert!(kept.is_held());
}
