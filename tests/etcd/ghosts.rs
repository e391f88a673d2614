//! Requests whose answer was lost: they may have been done, or may be yet.

use std::time::{Duration, Instant};

use dlock::LockManager;
use dlock_conformance::Store as _;
use etcd_client::{Client, GetOptions};
use tokio::time::timeout;

use crate::EtcdStore;
use crate::harness::{HASTE, config, connect, hasty, lease_of, places};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{free, had, held, served};
use crate::support::wait::{HANG, eventually, until, within};

/// How the message begins that keeps a lease alive, and no other: its length, and the
/// lease.
const KEEP_ALIVE: &str = "\0\0\0\0\u{a}\u{8}";

/// Its key is written, and the lease is not confirmed yet: nobody has the lock. Whoever
/// leaves then leaves nothing, though others keep the lease alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_left_before_its_lease_was_confirmed_leaves_nothing() {
    let store = EtcdStore::start().await;
    // What is held back is not taken for an outage.
    let manager = LockManager::connect(config(&store.url()).request_timeout(HANG));
    let manager = manager.await.expect("a connection");
    let judge = connect(&store.direct()).await;
    let ttl = Duration::from_secs(20);
    let request = manager.lock("held").ttl(ttl);
    let held = request.acquire().await.expect("the lock");
    let there = async || judge.inspect("key").await.expect("inspect");
    // Only if the key comes first, over the one connection, is it of any use.
    eventually("the key is there first", async || {
        // A confirmation is old after a fiftieth of the ttl.
        tokio::time::sleep(ttl / 40).await;
        store.proxy.hold_back(Some(KEEP_ALIVE));
        let request = manager.lock("key").ttl(ttl);
        let asking = tokio::spawn(request.acquire());
        let is_asked = async || store.proxy.holds_back().then_some(());
        eventually("a keep-alive is on its way", is_asked).await;
        let arrives = until("the key is there", there, Option::is_some);
        let arrived = timeout(Duration::from_millis(200), arrives).await;
        asking.abort();
        let left = asking.await;
        store.proxy.hold_back(None);
        if let Ok(had) = left {
            // What was held back was another's: nobody has left.
            had.expect("the lock").release().await.expect("the release");
            return None;
        }
        free(&judge, "key").await;
        arrived.ok().map(drop)
    })
    .await;
    assert!(held.is_held());
}

/// The same of a lock that `min_hold` keeps after its body, under another lease:
/// what arrives late is attached to the first one, which others go on using.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_after_min_hold_takes_nothing() {
    let min_hold = Duration::from_secs(3);
    unless_it_stands_still(min_hold / 4, async || comes_after(min_hold).await).await;
}

async fn comes_after(min_hold: Duration) {
    let store = EtcdStore::start().await;
    let host = format!("127.0.0.1:{}", store.server.port());
    let mut client = Client::connect([host], None).await.expect("a connection");
    let manager = connect(&store.url()).await;
    let judge = connect(&store.direct()).await;
    let held = held(manager.lock("held")).await;
    let first = lease_of(&store.server, &places(&store, "held").await[0]).await;

    // Its answer is lost, and it is repeated: it may be done twice.
    store.proxy.swallow_replies(true);
    let request = manager.lock("key").min_hold(min_hold);
    let run = tokio::spawn(async move { request.run(async {}).await });
    let inspect = async || judge.inspect("key").await.expect("inspect");
    until("the request has arrived", inspect, Option::is_some).await;
    store.proxy.swallow_replies(false);
    served(run).await;
    // At one look, by our own client: it is kept for no longer than `etcdctl` may take.
    let queue = format!("{}/key/", store.prefix);
    let all = GetOptions::new().with_prefix();
    let seen = client.get(queue, Some(all)).await.expect("an answer");
    let kept = seen.kvs().first().expect("it is kept");
    let (key, value) = (
        kept.key_str().expect("text"),
        kept.value_str().expect("text"),
    );
    let lease = format!("{:016x}", kept.lease());
    assert_ne!(lease, first, "it is kept under another one");
    free(&judge, "key").await;

    // As the request would that was sent first.
    let lease = format!("--lease={first}");
    let put = ["put", key, value, &lease];
    store.server.control(&put).await;
    free(&judge, "key").await;
    assert!(held.is_held());
}

/// Its end is that of the lease which was granted for it, however late the key is moved there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn min_hold_that_is_told_later_lasts_its_time() {
    unless_it_stands_still(HASTE / 8, is_told_later).await;
}

async fn is_told_later() {
    let min_hold = 4 * HASTE;
    let store = EtcdStore::start().await;
    let manager = hasty(&store.url()).await;
    let judge = connect(&store.direct()).await;
    had(&manager, "warm").await;
    let request = manager.lock("key").min_hold(min_hold);
    let before = Instant::now();
    // What names the key next is what moves it to the lease that was granted for that.
    let run = request.run(async { store.proxy.hold_back(Some("/key/")) });
    let outage = async {
        let is_moved = async || store.proxy.holds_back().then_some(());
        eventually("it is on its way", is_moved).await;
        store.proxy.refuse(true);
    };
    let (ran, ()) = within(HANG, async { tokio::join!(run, outage) }).await;
    ran.expect("the lock");
    store.proxy.hold_back(None);
    store.proxy.refuse(false);
    had(&judge, "key").await;
    let held_for = before.elapsed();
    assert!(held_for >= min_hold, "{held_for:?}");
}
