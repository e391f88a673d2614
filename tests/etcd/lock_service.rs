//! `recipe=lock-service`: the conformance suite by way of the server's own Lock
//! call, and what is special to it.

use std::time::Duration;

use dlock_conformance::{Since, Store, async_trait, conformance};
use etcd_client::Client;

use crate::EtcdStore;
use crate::harness::{config, connect, places};
use crate::support::calm::unless_it_stands_still;
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks::{self, held, is_busy, is_done, is_unsupported, queued, served};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, eventually, until, within};

struct LockService(EtcdStore);

#[async_trait(?Send)]
impl Store for LockService {
    async fn start() -> Self {
        Self(EtcdStore::start().await)
    }

    fn url(&self) -> String {
        format!("{}?recipe=lock-service", self.0.url())
    }

    /// Each lock has a lease of its own to be kept alive.
    fn short_ttl(&self) -> Duration {
        2 * crate::SHORT_TTL
    }

    /// A lock is a lease, its place, the call and a look, one after the other.
    fn request_timeout(&self) -> Duration {
        2 * self.0.request_timeout()
    }

    async fn take_away(&self, key: &str) {
        self.0.take_away(key).await;
    }

    fn shows_since(&self) -> Since {
        self.0.shows_since()
    }

    fn leaves_out() -> &'static [&'static str] {
        &["permits", "once", "cost", "restart"]
    }

    fn proxies(&self) -> &[Proxy] {
        self.0.proxies()
    }

    async fn records(&self) -> Option<usize> {
        self.0.records().await
    }
}

// The themes for which the call matters, or that each place has a lease of its own.
conformance!(crate::lock_service::LockService:
    tokens keys exclusion claims release leases queues drops unpolled outages late_commands breaking
    load;
);

mod whole {
    crate::conformance!(
        #[ignore = "./tests/run.sh --all"]
        crate::lock_service::LockService
    );
}

/// The two recipes keep each other out, in one queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_recipes_share_a_queue() {
    let store = EtcdStore::start().await;
    let ours = connect(&store.url()).await;
    let servers = connect(&format!("{}?recipe=lock-service", store.url())).await;
    let mut last = None;
    for (holder, other) in [(&ours, &servers), (&servers, &ours), (&ours, &servers)] {
        let guard = held(holder.lock("key")).await;
        is_busy(other.lock("key").try_acquire().await);
        let next = tokio::spawn(other.lock("key").run(async {}));
        queued(&ours, "key", 1).await;
        assert!(last < Some(guard.token()), "tokens rise over both");
        last = Some(guard.token());
        guard.release().await.expect("the release");
        served(next).await;
    }
    is_unsupported(servers.lock("key").read().acquire().await);
}

/// Who takes it by the call is told what was done, whether it waits or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_done_by_the_other_recipe_is_told() {
    let store = EtcdStore::start().await;
    let ours = connect(&store.url()).await;
    let servers = connect(&format!("{}?recipe=lock-service", store.url())).await;
    let guard = held(ours.lock("key").once(HANG)).await;
    let waiting = tokio::spawn(servers.lock("key").acquire());
    queued(&ours, "key", 1).await;
    guard.release_done().await.expect("the release");
    is_done(waiting.await.expect("no panic"));
    is_done(servers.lock("key").try_acquire().await);
    is_done(servers.lock("key").acquire().await);
    assert!(ours.forget("key").await.expect("forget"));
    drop(held(servers.lock("key")).await);
    let left = async || places(&store, "key").await;
    until("nothing is left", left, Vec::is_empty).await;
}

/// It does not wait in the server, whose call would not notice (etcd issue 19597).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_and_whose_key_was_deleted_queues_again() {
    let store = EtcdStore::start().await;
    let holder = connect(&store.url()).await;
    let waiter = connect(&format!("{}?recipe=lock-service", store.url())).await;
    let guard = held(holder.lock("key")).await;
    let waiting = tokio::spawn(waiter.lock("key").run(async {}));
    queued(&holder, "key", 1).await;
    let before = places(&store, "key").await;
    store.server.control(&["del", &before[1]]).await;
    let again = async || places(&store, "key").await;
    let now = until("it queues again", again, |now| now.len() == 2).await;
    assert_ne!(now[1], before[1]);
    guard.release().await.expect("the release");
    served(waiting).await;
}

/// The call for `key`: it names the lock, and the lease after that.
const CALL: &str = "\n\tdlock/key\u{10}";

async fn client(server: &EtcdServer) -> Client {
    let host = format!("127.0.0.1:{}", server.port());
    Client::connect([host], None).await.expect("a connection")
}

/// What the call relies on may end while it is on its way, as on a machine that stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_lease_or_key_has_gone_is_made_again() {
    for (lease_ends, other_waits) in [(true, false), (false, false), (false, true)] {
        let server = EtcdServer::start().await;
        let proxy = Proxy::to(server.port());
        let url = |port| etcd_url(&[port]);
        let other = connect(&url(server.port())).await;
        let called = format!("{}?recipe=lock-service", url(proxy.port()));
        // What is held back is not taken for an outage while this test runs.
        let manager = locks::connect(config(&called).request_timeout(3 * HANG)).await;
        proxy.hold_back(Some(CALL));
        let waiting = tokio::spawn(manager.lock("key").acquire());
        let is_called = async || proxy.holds_back().then_some(());
        eventually("the call is on its way", is_called).await;
        let places = server.keys("dlock/key/").await;
        let mut client = client(&server).await;
        let behind = other_waits.then(|| tokio::spawn(other.lock("key").acquire()));
        queued(&other, "key", usize::from(other_waits)).await;
        if lease_ends {
            let place = client.get(&*places[0], None).await.expect("an answer");
            let lease = place.kvs()[0].lease();
            client.lease_revoke(lease).await.expect("an answer");
        } else {
            client.delete(&*places[0], None).await.expect("an answer");
        }
        // The call writes its key behind the other's.
        let before = match behind {
            Some(behind) => Some(served(behind).await),
            None => None,
        };
        proxy.hold_back(None);
        if let Some(before) = before {
            // It is cut off, and its key goes with the lease.
            let behind = async || server.keys("dlock/key/").await;
            let is_another = |now: &Vec<String>| now.len() == 2 && !now.contains(&places[0]);
            until("it has another place", behind, is_another).await;
            before.release().await.expect("the other's release");
        }
        let guard = served(waiting).await;
        guard.release().await.expect("it holds what it was told");
        let left = async || server.keys("dlock/key/").await;
        until("nothing is left", left, Vec::is_empty).await;
    }
}

/// The lock is free for others, and the call may be run late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_an_answer_gives_its_place_up() {
    const LIMIT: Duration = Duration::from_secs(10);
    unless_it_stands_still(LIMIT / 20, async || gives_its_place_up(LIMIT).await).await;
}

async fn gives_its_place_up(limit: Duration) {
    let server = EtcdServer::start().await;
    let proxy = Proxy::to(server.port());
    let url = format!("{}?recipe=lock-service", etcd_url(&[proxy.port()]));
    let manager = locks::connect(config(&url).request_timeout(limit)).await;
    proxy.hold_back(Some(CALL));
    let waiting = tokio::spawn(manager.lock("key").acquire());
    let is_called = async || proxy.holds_back().then_some(());
    eventually("the call is on its way", is_called).await;
    let places = async || server.keys("dlock/key/").await;
    let before = places().await;
    let guard = served(waiting).await;
    let now = places().await;
    assert!(now.len() == 1 && now != before, "{before:?}, then {now:?}");
    proxy.hold_back(None);
    guard.release().await.expect("it holds what it was told");
    until("nothing is left", places, Vec::is_empty).await;
}

/// A waiter whose own lease is not kept alive would lose its place after one ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_outlives_many_ttls() {
    let ttl = Duration::from_secs(2);
    unless_it_stands_still(ttl / 4, async || outlives_many(ttl).await).await;
}

async fn outlives_many(ttl: Duration) {
    let server = EtcdServer::start().await;
    let url = etcd_url(&[server.port()]);
    let holder = connect(&url).await;
    let waiter = connect(&format!("{url}?recipe=lock-service")).await;
    let guard = held(holder.lock("key")).await;
    let waiting = tokio::spawn(waiter.lock("key").ttl(ttl).run(async {}));
    queued(&holder, "key", 1).await;
    let places = server.keys("dlock/key/").await;
    tokio::time::sleep(3 * ttl).await;
    assert_eq!(server.keys("dlock/key/").await, places, "it has its place");
    guard.release().await.expect("the release");
    served(waiting).await;
    // And a waiter that leaves, leaves nothing.
    let guard = held(holder.lock("key")).await;
    let leaving = tokio::spawn(waiter.lock("key").run(async {}));
    queued(&holder, "key", 1).await;
    leaving.abort();
    queued(&holder, "key", 0).await;
    guard.release().await.expect("the release");
    let leases = async || server.control(&["lease", "list"]).await;
    drop((holder, waiter));
    let none = |all: &String| all.contains("found 0 leases");
    until("no lease is left", leases, none).await;
}

/// The server ends all calls by way of one stream inside itself. Many that are cut off together
/// block it for ever, and with it each later call that has to wait (etcd issue 13336).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_leave_together_block_no_later_call() {
    const KEYS: usize = 150;
    let server = EtcdServer::start().await;
    let url = etcd_url(&[server.port()]);
    let holder = connect(&url).await;
    let waiter = connect(&format!("{url}?recipe=lock-service")).await;
    let keys: Vec<_> = (0..KEYS).map(|number| format!("key:{number}")).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(held(holder.lock(key)).await);
    }
    let waiting = async |count| {
        let places = async || server.keys("dlock/key:").await.len();
        until("they wait", places, |&places| places == KEYS + count).await;
    };
    for _ in 0..4 {
        let wait = |key| tokio::spawn(waiter.lock(key).run(async {}));
        let leaving: Vec<_> = keys.iter().map(wait).collect();
        waiting(KEYS).await;
        leaving.iter().for_each(tokio::task::JoinHandle::abort);
        waiting(0).await;
    }
    let last = tokio::spawn(waiter.lock("key:0").run(async {}));
    waiting(1).await;
    drop(guards);
    served(last).await;
    // And another program may let the call wait.
    let guard = held(holder.lock("key")).await;
    let mut other = client(&server).await;
    let called = tokio::spawn(async move { other.lock("dlock/key", None).await });
    queued(&holder, "key", 1).await;
    guard.release().await.expect("the release");
    within(HANG, called)
        .await
        .expect("no panic")
        .expect("the lock");
}
