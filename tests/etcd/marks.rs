//! What was done, as it stands beside the queue of its lock.

use std::time::{Duration, Instant};

use dlock::LockManager;
use dlock_conformance::Store as _;

use crate::EtcdStore;
use crate::harness::{config, connect, hasty, lease_of};
use crate::support::calm::unless_it_stands_still;
use crate::support::etcd::EtcdServer;
use crate::support::locks::{free, had, held, is_misconfigured, queued, says, served, shown};
use crate::support::wait::{HANG, eventually, until, within};

/// What it was attached to goes with it, and not only when its time has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_what_is_forgotten() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let guard = held(manager.lock("key").once(10 * HANG)).await;
    guard.release_done().await.expect("the release");
    let mark = format!("{}//key", store.prefix);
    let lease = lease_of(&store.server, &mark).await;
    let leases = async || store.server.control(&["lease", "list"]).await;
    assert!(leases().await.contains(&lease));
    assert!(manager.forget("key").await.expect("forget"));
    assert!(!leases().await.contains(&lease), "{lease}");
    free(&manager, "key").await;
}

/// It is told apart from a mark, and kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_in_the_place_of_a_mark_is_named() {
    unless_it_stands_still(Duration::from_millis(500), async || {
        is_named_in_the_place_of_a_mark().await
    })
    .await;
}

async fn is_named_in_the_place_of_a_mark() {
    let store = EtcdStore::start().await;
    let manager = hasty(&store.url()).await;
    let name = format!("{}//key", store.prefix);
    let put = ["put", &*name, "somebody's own"];
    store.server.control(&put).await;
    for refused in [
        within(HANG, manager.lock("key").try_acquire())
            .await
            .map(drop),
        within(HANG, manager.lock("key").acquire()).await.map(drop),
        within(HANG, manager.forget("key")).await.map(drop),
    ] {
        says(&is_misconfigured(refused), &[&name, "did not write"]);
    }
    assert!(manager.list("").await.expect("list").is_empty());
    let kept = store.server.control(&["get", &name]).await;
    assert!(kept.contains("somebody's own"), "{kept}");
    store.server.control(&["del", &name]).await;
    had(&manager, "key").await;
}

/// For how many whole seconds a lease will still be there.
async fn remains(server: &EtcdServer, lease: &str) -> u64 {
    let told = server.control(&["lease", "timetolive", lease]).await;
    let seconds = told.split_once("remaining(").and_then(|(_, told)| {
        let (seconds, _) = told.split_once("s)")?;
        seconds.parse().ok()
    });
    seconds.unwrap_or_else(|| panic!("{told}"))
}

/// The time of a mark begins with the mark, not with a grant whose answer was lost some
/// time before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_granted_before_an_outage_begins_anew() {
    const REMEMBERED: u64 = 100;
    const OUTAGE: u64 = 4;
    let store = EtcdStore::start_alone().await;
    let config = config(&store.url()).request_timeout(HANG / 2);
    let manager = LockManager::connect(config).await.expect("a connection");
    let request = manager.lock("key").ttl(HANG * 10);
    let guard = held(request.once(Duration::from_secs(REMEMBERED))).await;
    let listed = async || store.server.control(&["lease", "list"]).await;
    let before = listed().await;
    store.proxy.swallow_replies(true);
    let release = tokio::spawn(guard.release_done());
    let granted = eventually("the lease is granted", async || {
        let listed = listed().await;
        let mut new = listed.lines().skip(1).filter(|id| !before.contains(id));
        new.next().map(str::to_owned)
    })
    .await;
    let ages = async || remains(&store.server, &granted).await;
    until("it is some seconds old", ages, |&rest| {
        rest <= REMEMBERED - OUTAGE
    })
    .await;
    let no_mark_before = Instant::now();
    store.proxy.swallow_replies(false);
    let released = within(HANG, release).await.expect("no panic");
    released.expect("the mark");
    let mark = format!("{}//key", store.prefix);
    assert_eq!(lease_of(&store.server, &mark).await, granted.trim());
    let rest = Duration::from_secs(remains(&store.server, &granted).await);
    let lasts = no_mark_before.elapsed() + rest;
    // What is told is in whole seconds.
    assert!(lasts >= Duration::from_secs(REMEMBERED - 2), "{lasts:?}");
}

/// What tells a waiter to leave ends soon, and has a lease of its own: the waiter may get the lock
/// first, and mark what it has done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_that_comes_too_late_shortens_no_mark() {
    const REMEMBERED: u64 = 3600;
    let store = EtcdStore::start().await;
    let (holder, waiter) = (
        connect(&store.direct()).await,
        connect(&store.direct()).await,
    );
    let operator = connect(&store.url()).await;
    let guard = held(holder.lock("key")).await;
    let request = waiter.lock("key").once(Duration::from_secs(REMEMBERED));
    let waiting = tokio::spawn(request.acquire());
    queued(&operator, "key", 1).await;
    let owner = shown(&operator, "key").await.queue.remove(0).owner;
    store.proxy.hold_back(Some("/out-"));
    let breaking = tokio::spawn(async move { operator.break_waiter("key", &owner).await });
    let is_sent = async || store.proxy.holds_back().then_some(());
    eventually("the break is on its way", is_sent).await;
    guard.release().await.expect("the release");
    let guard = served(waiting).await;
    guard.release_done().await.expect("the mark");
    let mark = format!("{}//key", store.prefix);
    let lease = lease_of(&store.server, &mark).await;
    let rest = remains(&store.server, &lease).await;
    assert!(rest > REMEMBERED / 2, "{rest} s");
    store.proxy.hold_back(None);
    let broken = within(HANG, breaking).await.expect("no panic");
    assert!(broken.expect("an answer").is_none(), "it does not wait");
    let rest = remains(&store.server, &lease).await;
    assert!(rest > REMEMBERED / 2, "{rest} s");
}

/// A mark that comes to the server when its lease has ended is sent again with another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_that_came_later_than_its_lease_lasted_is_made() {
    let store = EtcdStore::start_alone().await;
    let config = config(&store.url()).request_timeout(HANG / 2);
    let manager = LockManager::connect(config).await.expect("a connection");
    let request = manager.lock("key").ttl(HANG * 10);
    let guard = held(request.once(Duration::from_secs(1))).await;
    let mark = format!("{}//key", store.prefix);
    let listed = async || store.server.control(&["lease", "list"]).await;
    let before = listed().await;
    store.proxy.hold_back(Some(&mark));
    let release = tokio::spawn(guard.release_done());
    let is_sent = async || store.proxy.holds_back().then_some(());
    eventually("the mark is on its way", is_sent).await;
    let none_is_new = async || {
        let listed = listed().await;
        let mut ids = listed.lines().skip(1);
        ids.all(|id| before.contains(id)).then_some(())
    };
    eventually("its lease has ended", none_is_new).await;
    store.proxy.hold_back(None);
    let released = within(HANG, release).await.expect("no panic");
    released.expect("the mark");
    free(&manager, "key").await;
}
