//! What the end of a manager leaves at the server.

use std::time::Duration;

use crate::harness::connect;
use crate::support::locks::{had, is_busy};
use crate::support::wait::{HANG, until, within};
use crate::support::zookeeper::{Setup, ZooKeeperServer};

fn url(server: &ZooKeeperServer) -> String {
    format!(
        "zookeeper://127.0.0.1:{}?session_timeout=30s",
        server.port()
    )
}

/// A process that ends well leaves nothing to a session's timeout.
#[tokio::test]
async fn a_manager_that_ends_closes_its_session() {
    let server = Setup::default().start().await;
    let manager = connect(&url(&server)).await;
    had(&manager, "key").await;
    let sessions = async || server.number("zk_global_sessions");
    until("a session", sessions, |&count| count == Some(1)).await;
    drop(manager);
    until("none is left", sessions, |&count| count == Some(0)).await;
}

/// But for the lock that is to be kept.
#[tokio::test]
async fn a_manager_that_ends_leaves_what_min_hold_keeps() {
    let server = Setup::default().start().await;
    let manager = connect(&url(&server)).await;
    let other = connect(&url(&server)).await;
    let kept = manager.lock("key").min_hold(HANG).run(async {});
    kept.await.expect("the lock");
    within(HANG, manager.shutdown()).await;
    drop(manager);
    tokio::time::sleep(Duration::from_millis(500)).await;
    is_busy(other.lock("key").try_acquire().await);
}
