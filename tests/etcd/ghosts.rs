//! Requests whose answer was lost: they may have been done, or may be yet.

use std::time::Duration;

use crate::EtcdStore;
use crate::harness::{connect, lease_of, places};
use crate::support::locks::{free, held, served};
use crate::support::wait::until;

/// The same of a lock that `min_hold` keeps after its body, under another lease:
/// what arrives late is attached to the first one, which others go on using.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_after_min_hold_takes_nothing() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let judge = connect(&store.direct()).await;
    let held = held(manager.lock("held")).await;
    let first = lease_of(&store.server, &places(&store, "held").await[0]).await;

    // Its answer is lost, and it is repeated: it may be done twice.
    store.proxy.swallow_replies(true);
    let request = manager.lock("key").min_hold(Duration::from_secs(3));
    let run = tokio::spawn(async move { request.run(async {}).await });
    let inspect = async || judge.inspect("key").await.expect("inspect");
    until("the request has arrived", inspect, Option::is_some).await;
    store.proxy.swallow_replies(false);
    served(run).await;
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
