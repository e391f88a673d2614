//! A look at many locks.

use std::collections::BTreeMap;

use std::time::Duration;

use etcd_client::{Client, PutOptions, Txn, TxnOp};
use tokio::task::JoinSet;

use crate::harness::config;
use crate::support::calm::unless_it_stands_still;
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks;
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, within};

/// Requests to the server so far, by their kinds.
async fn requests(server: &EtcdServer) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    for kind in ["Txn", "Range", "LeaseTimeToLive"] {
        let labels = format!("grpc_method=\"{kind}\"");
        let handled = server.metric("grpc_server_handled_total", &labels);
        all.insert(kind, handled.await);
    }
    all
}

/// Of many locks, of which each has a lease of its own, the first few are asked about.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_the_first_asks_about_no_others() {
    const LOCKS: usize = 120;
    let server = EtcdServer::start().await;
    let host = format!("127.0.0.1:{}", server.port());
    let mut client = Client::connect([host], None).await.expect("a connection");
    for number in 0..LOCKS {
        let lease = client.lease_grant(600, None).await.expect("a lease").id();
        let place = format!("x/{number:03}/{lease:x}");
        let attached = PutOptions::new().with_lease(lease);
        let put = client.put(place, "", Some(attached)).await;
        put.expect("an answer");
    }
    let url = format!("{}/x", etcd_url(&[server.port()]));
    let manager = locks::connect(config(&url)).await;
    let once = manager.lock("a done one").once(Duration::from_secs(600));
    let guard = locks::held(once).await;
    let done = guard.release_done().await;
    done.expect("it is remembered");

    for (most, texts) in [(5, 1), (60, 2)] {
        let before = requests(&server).await;
        let listed = within(HANG, manager.list_some("", most)).await;
        let listed = listed.expect("a list");
        let keys: Vec<_> = listed.locks.iter().map(|lock| lock.key.clone()).collect();
        let first: Vec<_> = (0..most).map(|number| format!("{number:03}")).collect();
        assert_eq!(keys, first);
        assert_eq!(listed.others, LOCKS + 1 - most);
        for lock in &listed.locks {
            assert!(lock.holders[0].expires_in.is_some(), "{lock:?}");
        }
        let mut after = requests(&server).await;
        for (kind, count) in &mut after {
            *count -= before[kind];
        }
        // One page of names, a transaction for each fifty locks, and their leases.
        let leases = u64::try_from(most).expect("few");
        let expected = [("LeaseTimeToLive", leases), ("Range", 1), ("Txn", texts)];
        assert_eq!(after, BTreeMap::from(expected));
    }
    let marks = manager.list_some("a", 1).await.expect("a list");
    assert_eq!((marks.locks.len(), marks.others), (1, 0));
    assert!(marks.locks[0].done.is_some(), "{marks:?}");
}

/// More names than are read at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_read_in_pages() {
    const LOCKS: usize = 12_000;
    let server = EtcdServer::start().await;
    let host = format!("127.0.0.1:{}", server.port());
    let mut client = Client::connect([host], None).await.expect("a connection");
    for chunk in (0..LOCKS).collect::<Vec<_>>().chunks(100) {
        let puts = chunk
            .iter()
            .map(|number| TxnOp::put(format!("x/{number:05}/1"), "", None));
        let made = client.txn(Txn::new().and_then(puts.collect::<Vec<_>>()));
        made.await.expect("an answer");
    }
    let url = format!("{}/x", etcd_url(&[server.port()]));
    let manager = locks::connect(config(&url)).await;
    let before = requests(&server).await;
    let listed = within(HANG, manager.list_some("", 3)).await;
    let listed = listed.expect("a list");
    let keys: Vec<_> = listed.locks.iter().map(|lock| &*lock.key).collect();
    assert_eq!(keys, ["00000", "00001", "00002"]);
    assert_eq!(listed.others, LOCKS - 3);
    let after = requests(&server).await;
    assert_eq!(after["Range"] - before["Range"], 3);
    assert_eq!(after["Txn"] - before["Txn"], 1);
}

/// Locks of other programs have a lease each. Some of them are asked for at a time, and
/// each time there is as long for the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_has_as_much_time_for_each_part() {
    const TASKS: usize = 50;
    const EACH: usize = 26;
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);
    let server = EtcdServer::start().await;
    let host = format!("127.0.0.1:{}", server.port());
    let client = Client::connect([host], None).await.expect("a connection");
    let mut made = JoinSet::new();
    for task in 0..TASKS {
        let mut client = client.clone();
        made.spawn(async move {
            for number in 0..EACH {
                let lease = client.lease_grant(600, None).await.expect("a lease").id();
                let place = format!("x/{task}.{number}/{lease:x}");
                let attached = PutOptions::new().with_lease(lease);
                let put = client.put(place, "", Some(attached)).await;
                put.expect("an answer");
            }
        });
    }
    made.join_all().await;

    let proxy = Proxy::to(server.port());
    let url = format!("{}/x", etcd_url(&[proxy.port()]));
    let manager = locks::connect(config(&url).request_timeout(REQUEST_TIMEOUT)).await;
    // All answers together take longer than one may.
    proxy.delay(Some(REQUEST_TIMEOUT / 24));
    let listed = unless_it_stands_still(REQUEST_TIMEOUT / 6, async || {
        within(HANG, manager.list("")).await.expect("a list")
    });
    let listed = listed.await;
    assert_eq!(listed.len(), TASKS * EACH);
    let known = |holder: &dlock::backend::HolderInfo| holder.expires_in.is_some();
    assert!(listed.iter().all(|lock| lock.holders.iter().all(known)));
}
