//! A server that stops and starts again.

use std::time::Duration;

use dlock::Config;
use dlock_conformance::{Store, async_trait};

use crate::harness::connect;
use crate::support::locks::{had, is_busy};
use crate::support::wait::{HANG, until, within};
use crate::support::zookeeper::{Setup, ZooKeeperServer};

/// A server of the test's own.
struct Alone(ZooKeeperServer);

impl Alone {
    fn url(&self) -> String {
        format!(
            "zookeeper://127.0.0.1:{}?session_timeout=30s",
            self.0.port()
        )
    }
}

#[async_trait(?Send)]
impl Store for Alone {
    async fn start() -> Self {
        Self(Setup::default().start().await)
    }

    fn config(&self) -> Config {
        Config::from_url(&self.url()).expect("a valid URL")
    }

    async fn take_away(&self, _key: &str) {}

    async fn set_outage(&self, _outage: bool) {}

    async fn restart(&mut self) -> bool {
        self.0.restart().await;
        true
    }
}

/// A process that ends well leaves nothing to a session's timeout.
#[tokio::test]
async fn a_manager_that_ends_closes_its_session() {
    let store = Alone::start().await;
    let manager = connect(&store.url()).await;
    had(&manager, "key").await;
    let sessions = async || store.0.number("zk_global_sessions");
    until("a session", sessions, |&count| count == Some(1)).await;
    drop(manager);
    until("none is left", sessions, |&count| count == Some(0)).await;
}

/// But for the lock that is to be kept.
#[tokio::test]
async fn a_manager_that_ends_leaves_what_min_hold_keeps() {
    let store = Alone::start().await;
    let manager = connect(&store.url()).await;
    let other = connect(&store.url()).await;
    let kept = manager.lock("key").min_hold(HANG).run(async {});
    kept.await.expect("the lock");
    within(HANG, manager.shutdown()).await;
    drop(manager);
    tokio::time::sleep(Duration::from_millis(500)).await;
    is_busy(other.lock("key").try_acquire().await);
}
