//! What is wrong from the start.

use dlock::{Config, LockError};

use crate::harness::connect;
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::locks::{held, is_busy};

#[tokio::test]
async fn a_wrong_url_names_the_setting() {
    for (url, says) in [
        ("etcd:", "not a URL"),
        ("etcd://", "a host is missing"),
        ("etcd://a,a:2379", "twice"),
        ("etcd://a?ttl=3", "unknown parameter"),
        ("etcd://a?recipe=other", "recipe"),
        ("etcd://a?ca=/x", "etcds://"),
    ] {
        let error = Config::from_url(url).map(drop).expect_err(url);
        assert!(matches!(error, LockError::Config { .. }), "{error:?}");
        let message = error.to_string();
        assert!(
            message.contains("store URL") && message.contains(says),
            "{message}"
        );
    }
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
