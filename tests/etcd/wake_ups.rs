//! Who waits for permits waits for several, and no one in particular.

use std::time::Duration;

use dlock::LockError;
use dlock_conformance::Store as _;
use tokio::task::JoinSet;

use crate::EtcdStore;
use crate::harness::{connect, hasty, places};
use crate::support::calm::unless_it_stands_still;
use crate::support::crowd;
use crate::support::locks::{had, held, is_busy};
use crate::support::wait::{HANG, within};

/// In so many processes. What the server is asked, without the looks of once a second.
async fn asked_for_a_release(processes: usize) -> f64 {
    let store = EtcdStore::start_alone().await;
    let holder = connect(&store.direct()).await;
    let mut managers = Vec::new();
    for _ in 0..processes {
        managers.push(connect(&store.url()).await);
    }
    // A look, the first one's read, and signs of life: of each.
    let looks = |time: Duration| time.as_secs_f64().ceil() * 4.0 * (processes + 1) as f64;
    crowd::asked_for_a_release(&holder, managers, async || store.asked().await, looks).await
}

/// It is deleted, and the first who waits reads; what is confirmed besides is its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_of_a_hundred() {
    let few = async || {
        let asked = asked_for_a_release(1).await;
        assert!(asked <= 4.0, "{asked} messages");
    };
    unless_it_stands_still(crowd::QUIET / 3, few).await;
}

/// The first of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_of_each_process() {
    let few = async || {
        let asked = asked_for_a_release(10).await;
        assert!(asked <= 4.0 + 10.0, "{asked} messages");
    };
    unless_it_stands_still(crowd::QUIET / 3, few).await;
}

/// Its place says what it asks for, to others too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_says_how_many_permits_there_are() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let guard = held(manager.lock("key").permits(7)).await;
    let place = places(&store, "key").await.remove(0);
    let start = format!("{}/key/permit-7-", store.prefix);
    assert!(place.starts_with(&start), "{place}");
    // What another program has named so is a writer's.
    guard.release().await.expect("the release");
    for name in ["permit-7", "permit-x-1"] {
        let foreign = format!("{}/key/{name}", store.prefix);
        store.server.control(&["put", &foreign, ""]).await;
        is_busy(manager.lock("key").permits(9).try_acquire().await);
        store.server.control(&["del", &foreign]).await;
    }
}

/// It is not the first of its process: somebody else is woken by what happens in the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_was_deleted_behind_others_is_taken_again() {
    let store = EtcdStore::start().await;
    let (holder, manager) = (connect(&store.url()).await, connect(&store.url()).await);
    let all = async || places(&store, "key").await;
    let delete = async |place: &str| {
        store.server.control(&["del", place]).await;
    };
    crowd::a_deleted_place_is_taken_again(&holder, &manager, all, delete).await;
}

/// Its write counts only if nobody has come since it looked, and somebody comes all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_among_many_is_answered() {
    unless_it_stands_still(Duration::from_millis(500), async || {
        is_answered_among_many().await
    })
    .await;
}

async fn is_answered_among_many() {
    let store = EtcdStore::start().await;
    let manager = hasty(&store.url()).await;
    had(&manager, "warm").await;
    let mut others = JoinSet::new();
    for _ in 0..3 {
        let other = connect(&store.direct()).await;
        others.spawn(async move {
            loop {
                drop(held(other.lock("key").permits(100)).await);
            }
        });
    }
    store.proxy.delay(Some(Duration::from_millis(50)));
    for reads in [false, true] {
        let request = match reads {
            true => manager.lock("key").read(),
            false => manager.lock("key").permits(100),
        };
        match within(HANG, request.try_acquire()).await {
            Ok(guard) => guard.release().await.expect("the release"),
            Err(LockError::Busy { .. }) => {}
            Err(error) => panic!("reads: {reads}: {error:?}"),
        }
    }
}
