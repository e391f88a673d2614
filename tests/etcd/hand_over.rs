//! From one process to the next, while others write.

use dlock_conformance::Store as _;
use etcd_client::{Client, WatchOptions};

use crate::EtcdStore;
use crate::harness::{connect, places};
use crate::support::etcd::EtcdServer;
use crate::support::locks::{held, served};
use crate::support::wait::{eventually, until};

/// How many watches the server has, and how many of them are behind: it tells these
/// of what they have missed in a loop, every 100 ms. (The metrics are of
/// `mvcc/metrics.go` in etcd's source.)
const WATCHES: &str = "etcd_debugging_mvcc_watcher_total ";
const BEHIND: &str = "etcd_debugging_mvcc_slow_watcher_total ";

const HAND_OVERS: u32 = 30;

/// The server tells of what is behind in a loop. A waiter's watch must not be one
/// that is, however old what the waiter has read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_not_told_by_the_loop_for_those_behind() {
    // A server of its own: nobody else watches, or writes.
    let store = EtcdStore::start_alone().await;
    let server = &store.server;
    let host = format!("127.0.0.1:{}", server.port());
    let mut client = Client::connect([host], None).await.expect("a connection");
    let holder = connect(&store.direct()).await;
    let waiter = connect(&store.url()).await;
    for _ in 0..HAND_OVERS {
        let guard = held(holder.lock("key")).await;
        let place = places(&store, "key").await.remove(0);
        // What a waiter asks for by the name of the one before it is the watch.
        store.proxy.hold_back(Some(&place));
        let waiting = tokio::spawn(waiter.lock("key").run(async {}));
        let is_asked = async || store.proxy.holds_back().then_some(());
        eventually("it watches the holder", is_asked).await;
        client.put("noise", "", None).await.expect("an answer");
        store.proxy.hold_back(None);
        // Nobody writes until the server has it, and that of the own place.
        let watches = async || {
            let (watches, behind) = watches(server).await;
            assert_eq!(behind, 0, "of {watches}");
            watches
        };
        until("both are made", watches, |&watches| watches == 2).await;
        guard.release().await.expect("the release");
        served(waiting).await;
        let gone = async || self::watches(server).await.0;
        until("none is left", gone, |&watches| watches == 0).await;
    }

    // One that begins with what was read is seen to be.
    let from_the_past = async || {
        let put = client.put("probe", "", None).await.expect("an answer");
        let read_at = put.header().expect("a header").revision();
        client.put("noise", "", None).await.expect("an answer");
        let from = WatchOptions::new().with_start_revision(read_at + 1);
        let watch = client.watch("probe", Some(from)).await.expect("a watch");
        let (_, behind) = watches(server).await;
        drop(watch);
        (behind > 0).then_some(())
    };
    eventually("a watch is behind", from_the_past).await;
}

/// How many there are, and how many of them are behind.
async fn watches(server: &EtcdServer) -> (u64, u64) {
    let watches = server.metric(WATCHES, "").await;
    (watches, server.metric(BEHIND, "").await)
}
