//! Names of places are used again, as the server keeps each for long. What comes
//! late for one who had a name must not touch whoever has it now.

use std::collections::BTreeSet;
use std::time::Duration;

use dlock_conformance::Store as _;
use etcd_client::{
    Client, Compare, CompareOp, Error, PutOptions, Txn, TxnOp, TxnResponse, WatchOptions,
};

use crate::EtcdStore;
use crate::harness::{HASTE, config, connect, hasty, lease_of, places};
use crate::support::calm::unless_it_stands_still;
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks::{self, free, had, held, is_busy, queued, served};
use crate::support::wait::{HANG, eventually, until, within};

async fn client(server: &EtcdServer) -> Client {
    let host = format!("127.0.0.1:{}", server.port());
    Client::connect([host], None).await.expect("a connection")
}

/// All keys that there have ever been.
async fn names(server: &EtcdServer) -> BTreeSet<String> {
    let mut client = client(server).await;
    client.put("end", "", None).await.expect("an answer");
    let from = WatchOptions::new().with_all_keys().with_start_revision(1);
    let mut watch = client.watch("", Some(from)).await.expect("a watch");
    let mut names = BTreeSet::new();
    loop {
        let message = within(HANG, watch.message()).await.expect("a stream");
        for event in message.expect("a stream that goes on").events() {
            let key = event.kv().expect("a key").key_str().expect("text");
            if key == "end" {
                return names;
            }
            names.insert(key.to_owned());
        }
    }
}

/// What a section costs the server depends on how many names there have been.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sections_need_few_names() {
    let server = EtcdServer::start().await;
    let url = etcd_url(&[server.port()]);
    // On a busy machine some of so many may take long.
    let patient = async || locks::connect(config(&url).request_timeout(HANG)).await;
    let (one, other) = (patient().await, patient().await);
    for _ in 0..500 {
        had(&one, "key").await;
        drop(one.lock("key").try_acquire().await.expect("the lock"));
    }
    // Each of those was dropped, and went back meanwhile.
    let lone = names(&server).await.len();
    assert!(lone <= 5, "{lone} names for a lone task");

    // Two that wait for each other, readers, and waiters who leave.
    let short = Duration::from_millis(1);
    let contend = async |manager: &dlock::LockManager| {
        for _ in 0..100 {
            had(manager, "key").await;
            let read = manager.lock("key").read();
            within(HANG, read.run(async {})).await.expect("the lock");
            let _ = manager.lock("key").acquire_within(short).await;
        }
    };
    tokio::join!(contend(&one), contend(&other));
    let all = names(&server).await.len();
    assert!(all <= 25, "{all} names for two processes");
}

/// A name and what its request wrote into it.
#[derive(Debug)]
struct Written {
    name: String,
    value: String,
    lease: i64,
}

async fn written(store: &EtcdStore, key: &str) -> Written {
    let name = places(store, key).await.remove(0);
    let get = ["get", "--print-value-only", &name];
    let value = store.server.control(&get).await.trim_end().to_owned();
    let lease = lease_of(&store.server, &name).await;
    Written {
        name,
        value,
        lease: i64::from_str_radix(&lease, 16).expect("a number"),
    }
}

impl Written {
    /// The request that wrote it is done once more.
    async fn again(&self, server: &EtcdServer) -> Result<TxnResponse, Error> {
        let new = Compare::create_revision(&*self.name, CompareOp::Equal, 0);
        let lease = PutOptions::new().with_lease(self.lease);
        let put = TxnOp::put(&*self.name, &*self.value, Some(lease));
        let txn = Txn::new().when([new]).and_then([put]);
        client(server).await.txn(txn).await
    }
}

/// What was held back is done now. Nothing else comes over its connection: not
/// that its client has given up.
async fn arrives(store: &EtcdStore) {
    let proposals = async || {
        let committed = "etcd_server_proposals_committed_total";
        store.server.metric(committed, "").await
    };
    let before = proposals().await;
    store.proxy.freeze();
    store.proxy.hold_back(None);
    until("it is done", proposals, |&now| now > before).await;
}

/// It was on its way for so long that it was sent again; the first one comes when
/// the lock has long been released. Nobody has its name until nothing can be
/// written under its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_put_finds_nobody_under_its_name() {
    unless_it_stands_still(HASTE / 8, late_put).await;
}

async fn late_put() {
    let store = EtcdStore::start_alone().await;
    let manager = hasty(&store.url()).await;
    let judge = connect(&store.direct()).await;
    // Its lease goes on.
    let kept = held(manager.lock("held")).await;

    store
        .proxy
        .hold_back(Some(&format!("{}/key/", store.prefix)));
    let guard = within(HANG, manager.lock("key").acquire()).await;
    assert!(store.proxy.holds_back());
    let first = written(&store, "key").await;
    guard.expect("the lock").release().await.expect("released");

    let guard = held(manager.lock("key")).await;
    let second = written(&store, "key").await;
    assert_ne!(second.name, first.name);
    assert_ne!(second.lease, first.lease, "nobody else gets the first one");
    let keys = async || places(&store, "key").await;
    let puts = async || store.server.metric("etcd_mvcc_put_total", "").await;
    let before = puts().await;
    arrives(&store).await;
    until("it is written", puts, |&now| now > before).await;
    until("it is deleted again", keys, |now| now.len() == 1).await;
    assert_eq!(keys().await, [second.name]);
    assert!(guard.is_held());
    guard.release().await.expect("it was ours");

    // With the lease, its name is free.
    kept.release().await.expect("released");
    let leases = async || store.server.control(&["lease", "list"]).await;
    let ended = format!("{:x}", first.lease);
    until("the lease is revoked", leases, |all| !all.contains(&ended)).await;
    let again = async || {
        let guard = held(manager.lock("key")).await;
        let has = written(&store, "key").await;
        (guard, has.name)
    };
    let (guard, _) = until("it is used again", again, |(_, has)| *has == first.name).await;
    let late = first.again(&store.server).await;
    assert!(!late.is_ok_and(|late| late.succeeded()));
    guard.release().await.expect("it was ours");
    let late = first.again(&store.server).await;
    late.expect_err("its lease has ended");
    free(&judge, "key").await;
}

/// A release is sent twice, and is done for the second time when the next
/// request has the name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_delete_leaves_the_next_one_alone() {
    unless_it_stands_still(HASTE / 8, late_delete).await;
}

async fn late_delete() {
    let store = EtcdStore::start_alone().await;
    let manager = hasty(&store.url()).await;
    let had = async || {
        let guard = within(HANG, manager.lock("key").acquire()).await;
        (guard.expect("the lock"), written(&store, "key").await)
    };
    let (guard, first) = had().await;
    store.proxy.hold_back(Some(&first.name));
    guard.release().await.expect("sent again, it is released");
    assert!(store.proxy.holds_back());

    let (guard, second) = had().await;
    assert_eq!(second.name, first.name, "it is used again");
    assert_ne!(second.value, first.value);
    arrives(&store).await;
    assert_eq!(places(&store, "key").await, [second.name]);
    assert!(guard.is_held());
    guard.release().await.expect("it was ours");
}

/// The same of what is deleted for a waiter who has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_withdrawal_leaves_the_next_one_alone() {
    unless_it_stands_still(HASTE / 8, late_withdrawal).await;
}

async fn late_withdrawal() {
    let store = EtcdStore::start_alone().await;
    let manager = hasty(&store.url()).await;
    let judge = connect(&store.direct()).await;
    let holder = held(judge.lock("key")).await;
    let leaving = tokio::spawn(manager.lock("key").run(async {}));
    queued(&judge, "key", 1).await;
    let first = places(&store, "key").await.remove(1);
    store.proxy.hold_back(Some(&first));
    leaving.abort();
    // Sent again, it is done.
    queued(&judge, "key", 0).await;
    assert!(store.proxy.holds_back());

    let next = eventually("its name is used again", async || {
        let next = tokio::spawn(manager.lock("key").run(async {}));
        queued(&judge, "key", 1).await;
        if places(&store, "key").await[1] == first {
            return Some(next);
        }
        next.abort();
        queued(&judge, "key", 0).await;
        None
    })
    .await;
    arrives(&store).await;
    assert_eq!(places(&store, "key").await[1..], [first]);
    holder.release().await.expect("the release");
    served(next).await;
}

/// A copy of this process has the same names; what it wrote is not taken for our
/// own, nor deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_somebody_else_has_is_left_to_it() {
    let store = EtcdStore::start().await;
    let (manager, judge) = (connect(&store.url()).await, connect(&store.direct()).await);
    let guard = held(manager.lock("key")).await;
    let first = written(&store, "key").await;
    guard.release().await.expect("released");
    let copy = "c0b1.7.0";
    store.server.control(&["put", &first.name, copy]).await;

    is_busy(manager.lock("key").try_acquire().await);
    let waiting = tokio::spawn(manager.lock("key").run(async {}));
    queued(&judge, "key", 1).await;
    let lock = judge.inspect("key").await.expect("inspect");
    assert_eq!(lock.expect("it is held").holders[0].owner, copy);
    assert!(!waiting.is_finished());
    store.server.control(&["del", &first.name]).await;
    served(waiting).await;

    // Readers stand in nobody's way: it is not busy.
    let read = manager.lock("key").read().acquire().await;
    let first = written(&store, "key").await;
    read.expect("the lock").release().await.expect("released");
    store.server.control(&["put", &first.name, copy]).await;
    let read = manager.lock("key").read().try_acquire().await;
    assert_eq!(places(&store, "key").await.len(), 2);
    read.expect("the lock").release().await.expect("released");
    assert_eq!(places(&store, "key").await, [first.name]);
}

/// `min_hold` keeps a lock after its body; then its name is free for the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_was_kept_gives_its_name_back() {
    let server = EtcdServer::start().await;
    let manager = connect(&etcd_url(&[server.port()])).await;
    for _ in 0..10 {
        let kept = manager.lock("key").min_hold(Duration::from_millis(50));
        within(HANG, kept.run(async {})).await.expect("the lock");
    }
    let names = names(&server).await.len();
    assert!(names <= 3, "{names} names");
}
