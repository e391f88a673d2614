//! What leases and watches can do wrong.

use std::process::Stdio;
use std::time::Duration;

use dlock::LockManager;
use dlock_conformance::Store as _;
use etcd_client::{AlarmAction, AlarmType, Client};

use crate::EtcdStore;
use crate::harness::{HASTE, config, connect, hasty, lease_of, places};
use crate::support::calm::unless_it_stands_still;
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks::{had, held, is_busy, is_unavailable, queued, served};
use crate::support::process::Process;
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, eventually, until, within};

/// Its place is gone: it must not take itself for the holder when the one that
/// was ahead leaves, and takes another place, at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_key_was_deleted_queues_again() {
    let store = EtcdStore::start().await;
    let judge = connect(&store.url()).await;
    let (first, second) = (connect(&store.url()).await, connect(&store.url()).await);
    let guard = held(judge.lock("key")).await;
    let first = tokio::spawn(first.lock("key").run(async {}));
    queued(&judge, "key", 1).await;
    let second = tokio::spawn(second.lock("key").acquire());
    queued(&judge, "key", 2).await;
    let before = places(&store, "key").await;
    store.server.control(&["del", &before[1]]).await;
    let again = async || places(&store, "key").await;
    let after = until("it queues again", again, |now| now.len() == 3).await;
    assert_eq!(after[..2], [before[0].clone(), before[2].clone()]);
    guard.release().await.expect("the release");
    let guard = served(second).await;
    assert!(!first.is_finished(), "it comes after the second");
    guard.release().await.expect("the release");
    served(first).await;
}

/// All locks of one ttl share a lease, and are told of its end together: that
/// one of them is dropped is no matter of the others'.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ends_takes_all_its_locks_along() {
    let ttl = Duration::from_secs(3);
    unless_it_stands_still(ttl / 4, async || takes_all_along(ttl).await).await;
}

async fn takes_all_along(ttl: Duration) {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let mut guards = Vec::new();
    for number in 0..5 {
        let request = manager.lock(format!("key:{number}")).ttl(ttl);
        guards.push(request.acquire().await.expect("the lock"));
    }
    let other = held(manager.lock("other")).await;
    let place = &places(&store, "key:0").await[0];
    let lease = lease_of(&store.server, place).await;
    for number in 1..5 {
        let place = &places(&store, &format!("key:{number}")).await[0];
        assert_eq!(lease_of(&store.server, place).await, lease, "they share it");
    }
    let one = guards.pop().expect("a guard");
    one.release().await.expect("the release");
    assert!(guards.iter().all(|guard| guard.is_held()));
    store.server.control(&["lease", "revoke", &lease]).await;
    for guard in &guards {
        within(HANG, guard.lost()).await;
    }
    assert!(other.is_held(), "of another ttl");
    // And they can be had again, under another lease.
    drop(guards);
    let again = manager.lock("key:0").ttl(ttl).acquire();
    let again = within(HANG, again).await.expect("the lock");
    let place = &places(&store, "key:0").await[0];
    assert_ne!(lease_of(&store.server, place).await, lease);
    again.release().await.expect("the release");
}

/// Two tasks of one process share a lease; the lock is had by one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tasks_that_share_a_lease_do_not_both_win() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let guard = held(manager.lock("key")).await;
    is_busy(manager.lock("key").try_acquire().await);
    // Readers ask the store one by one: each has a place of its own.
    drop(guard);
    let (one, other) = tokio::join!(
        manager.lock("key").read().acquire(),
        manager.lock("key").read().acquire()
    );
    let (one, other) = (one.expect("the lock"), other.expect("the lock"));
    let held = places(&store, "key").await;
    assert_eq!(held.len(), 2, "{held:?}");
    let leases = (
        lease_of(&store.server, &held[0]),
        lease_of(&store.server, &held[1]),
    );
    assert_eq!(leases.0.await, leases.1.await);
    one.release().await.expect("the release");
    is_busy(manager.lock("key").try_acquire().await);
    other.release().await.expect("the release");
    had(&manager, "key").await;
}

/// The watch is made so late that the news it was for is past, and compacted
/// away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_what_was_compacted_away_is_read_again() {
    let server = EtcdServer::start().await;
    let proxy = Proxy::to(server.port());
    let direct = format!("etcd://127.0.0.1:{}", server.port());
    let holder = connect(&direct).await;
    let waiter = connect(&format!("etcd://127.0.0.1:{}", proxy.port())).await;
    had(&waiter, "other").await;
    let guard = held(holder.lock("key")).await;
    proxy.delay(Some(Duration::from_millis(200)));
    let waiting = tokio::spawn(waiter.lock("key").run(async {}));
    queued(&holder, "key", 1).await;
    // What says where it stands is on its way to it; then it will watch.
    guard.release().await.expect("the release");
    let words = ["put", "other", "x", "--write-out=fields"];
    let put = server.control(&words).await;
    let mut fields = put.lines();
    let revision = fields.find_map(|line| line.strip_prefix("\"Revision\" : "));
    let words = ["compact", revision.expect("a revision")];
    server.control(&words).await;
    proxy.delay(None);
    served(waiting).await;
}

/// It hangs for longer than a lease lasts, which is shorter than what a request
/// waits for: the lease is kept by another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hangs_ends_no_short_lease() {
    let ttl = Duration::from_millis(1_800);
    unless_it_stands_still(ttl / 8, async || outlives_a_member(ttl).await).await;
}

async fn outlives_a_member(ttl: Duration) {
    let store = EtcdStore::start().await;
    let other = Proxy::to(store.server.port());
    let ports = [store.proxy.port(), other.port()];
    let url = format!("{}/{}", etcd_url(&ports), store.prefix);
    let config = config(&url).request_timeout(Duration::from_secs(5));
    let connecting = within(HANG, LockManager::connect(config));
    let manager = connecting.await.expect("a connection");
    let request = manager.lock("own").ttl(ttl);
    let own = request.acquire().await.expect("the lock");
    // One of them is asked.
    for proxy in [&store.proxy, &other] {
        proxy.stall(true);
        tokio::time::sleep(2 * ttl).await;
        assert!(own.is_held());
        proxy.stall(false);
    }
}

/// The server may keep it for longer than we count: it has heard what it could
/// not answer, or a new leader lets it begin anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_given_up_is_revoked() {
    unless_it_stands_still(HASTE / 4, given_up_and_revoked).await;
}

async fn given_up_and_revoked() {
    let store = EtcdStore::start().await;
    let manager = hasty(&store.url()).await;
    let request = manager.lock("own").ttl(Duration::from_secs(2));
    let own = request.acquire().await.expect("the lock");
    let lease = lease_of(&store.server, &places(&store, "own").await[0]).await;
    let mut keep_alive = store.server.etcdctl(&["lease", "keep-alive", &lease]);
    keep_alive.stdout(Stdio::null());
    let _keeper = Process::spawn(keep_alive).expect("etcdctl");
    store.proxy.stall(true);
    within(HANG, own.lost()).await;
    // It takes longer to be told than the lease lasts.
    is_unavailable(within(HANG, manager.lock("new").acquire()).await);
    store.proxy.stall(false);
    let left = async || {
        let time = ["lease", "timetolive", &lease];
        store.server.control(&time).await
    };
    let expired = |left: &String| left.contains("already expired");
    until("it has ended at the server", left, expired).await;
}

/// An idle manager keeps no lease, and a dead one's ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_given_back_too() {
    let ttl = Duration::from_secs(1);
    unless_it_stands_still(ttl / 4, async || are_given_back(ttl).await).await;
}

async fn are_given_back(ttl: Duration) {
    let server = EtcdServer::start().await;
    let manager = connect(&format!("etcd://127.0.0.1:{}", server.port())).await;
    let leases = async || server.control(&["lease", "list"]).await;
    let none = |leases: &String| leases.contains("found 0 leases");
    let host = format!("127.0.0.1:{}", server.port());
    let mut client = Client::connect([host], None).await.expect("a connection");
    let short = async |manager: &LockManager| {
        let ran = manager.lock("key").ttl(ttl).run(async {});
        ran.await.expect("the lock");
    };
    short(&manager).await;
    // Asked for by our own client: until `etcdctl` has started, its time may be over.
    let kept = client.leases().await.expect("an answer");
    assert!(!kept.leases().is_empty(), "it is kept for the next one");
    until("an unused lease is revoked", leases, none).await;
    short(&manager).await;
    had(&manager, "long").await;
    manager.shutdown().await;
    drop(manager);
    until("all are revoked", leases, none).await;
    assert_eq!(server.keys("").await, Vec::<String>::new());
}

/// Whether an operator has taken it out of the queue is a question that changes nothing: no lease
/// has to end because its answer was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_was_not_answered_ends_no_lease() {
    unless_it_stands_still(Duration::from_millis(500), async || {
        looks_without_an_answer().await
    })
    .await;
}

async fn looks_without_an_answer() {
    let store = EtcdStore::start().await;
    let holder = connect(&store.direct()).await;
    let waiter = hasty(&store.url()).await;
    let other = held(waiter.lock("other")).await;
    let lease = async |key| lease_of(&store.server, &places(&store, key).await[0]).await;
    let shared = lease("other").await;
    let guard = held(holder.lock("key")).await;
    let waiting = tokio::spawn(waiter.lock("key").acquire());
    queued(&holder, "key", 1).await;
    let place = places(&store, "key").await.remove(1);
    store.proxy.hold_back(Some("/out-"));
    store.server.control(&["del", &place]).await;
    let is_asked = async || store.proxy.holds_back().then_some(());
    eventually("it asks why its key has gone", is_asked).await;
    // It asks again, and then takes another place.
    queued(&holder, "key", 1).await;
    store.proxy.hold_back(None);
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");
    let next = held(waiter.lock("next")).await;
    assert_eq!(lease("next").await, shared);
    assert!(other.is_held() && next.is_held());
}

/// A server without space has answered that it does not write: nothing of it is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_without_space_ends_no_lease() {
    unless_it_stands_still(Duration::from_millis(500), async || {
        puts_without_space().await
    })
    .await;
}

async fn puts_without_space() {
    let store = EtcdStore::start_alone().await;
    let manager = hasty(&store.direct()).await;
    let other = held(manager.lock("other")).await;
    let lease = async |key| lease_of(&store.server, &places(&store, key).await[0]).await;
    let shared = lease("other").await;
    let host = format!("127.0.0.1:{}", store.server.port());
    let mut client = Client::connect([host], None).await.expect("a connection");
    let mut alarm = async |action| {
        let told = client.alarm(action, AlarmType::Nospace, None).await;
        told.expect("an answer");
    };
    alarm(AlarmAction::Activate).await;
    let error = manager.lock("key").try_acquire().await.map(drop);
    let error = error.expect_err("there is no space");
    assert!(error.to_string().contains("defragment"), "{error}");
    alarm(AlarmAction::Deactivate).await;
    let next = held(manager.lock("next")).await;
    assert_eq!(lease("next").await, shared);
    assert!(other.is_held() && next.is_held());
}
