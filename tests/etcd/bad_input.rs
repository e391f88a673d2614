//! What is wrong from the start.

use crate::harness::connect;
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks::{held, is_busy};
use crate::support::secure::all_misconfigured;

#[tokio::test]
async fn a_wrong_url_names_the_setting() {
    all_misconfigured(&[
        ("etcd:", &["store URL", "not a URL"]),
        ("etcd://", &["store URL", "a host is missing"]),
        ("etcd://a,a:2379", &["store URL", "twice"]),
        ("etcd://a?ttl=3", &["store URL", "unknown parameter"]),
        ("etcd://a?recipe=other", &["store URL", "recipe"]),
        ("etcd://a?ca=/x", &["store URL", "etcds://"]),
    ])
    .await;
}

/// Keys that are no locks are left alone, and are not shown as such.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_keys_are_left_alone() {
    let server = EtcdServer::start().await;
    let manager = connect(&etcd_url(&[server.port()])).await;
    server.control(&["put", "dlock/stray", "hello"]).await;
    server.control(&["put", "dlocks", "hello"]).await;
    let guard = held(manager.lock("key")).await;
    let listed = manager.list("").await.expect("list");
    assert_eq!(listed.len(), 1, "{listed:?}");
    guard.release().await.expect("the release");
    assert_eq!(server.keys("dlock").await, ["dlock/stray", "dlocks"]);
    // A key in the queue that is attached to no lease is a holder who never
    // dies: an operator's.
    server.control(&["put", "dlock/key/maintenance", ""]).await;
    is_busy(manager.lock("key").try_acquire().await);
    let lock = manager
        .inspect("key")
        .await
        .expect("inspect")
        .expect("held");
    assert_eq!(lock.holders[0].owner, "maintenance");
    assert_eq!(lock.holders[0].expires_in, None);
}
