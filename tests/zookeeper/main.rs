//! The ZooKeeper store: the conformance suite on a real server, and what only a
//! store with sessions, watches and consensus can do wrong.

#![cfg(feature = "zookeeper")]

#[path = "../support/mod.rs"]
mod support;

mod curator;
mod ensemble;
mod harness;
mod idle;
mod numbers;
mod restarts;
mod secure;
mod traps;

use std::sync::Arc;
use std::time::Duration;

use dlock::Config;
use dlock::backend::zookeeper_client::Error;
use dlock_conformance::processes::Shared;
use dlock_conformance::{Store, async_trait, conformance, contenders};

use support::proxy::Proxy;
use support::zookeeper::{ZooKeeperServer, nodes};

/// A folder of the test's own, in a server that others use too and which is
/// reached through a proxy that can fail.
struct ZooKeeperStore {
    server: Arc<ZooKeeperServer>,
    proxy: Proxy,
    root: String,
}

impl ZooKeeperStore {
    fn url_with(&self, options: &str) -> String {
        let Self { proxy, root, .. } = self;
        format!("zookeeper://127.0.0.1:{}{root}?{options}", proxy.port())
    }
}

#[async_trait(?Send)]
impl Store for ZooKeeperStore {
    async fn start() -> Self {
        let server = ZooKeeperServer::shared().await;
        Self {
            proxy: Proxy::to(server.port()),
            server,
            root: format!("/test-{:016x}", fastrand::u64(..)),
        }
    }

    fn config(&self) -> Config {
        Config::from_url(&self.url_with("session_timeout=12s")).expect("a valid URL")
    }

    /// A write of a Java machine, on a machine that does much else.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn url_at(&self, [port, ..]: [u16; 3]) -> Option<String> {
        Some(format!("zookeeper://127.0.0.1:{port}"))
    }

    async fn set_refused(&self, refused: bool) -> bool {
        self.proxy.shut(refused);
        true
    }

    async fn take_away(&self, key: &str) {
        let client = self.server.client().await;
        let folder = format!("{}/{key}", self.root);
        if let Some(holder) = nodes(&client, &folder).await.first() {
            let path = format!("{folder}/{holder}");
            client.delete(&path, None).await.expect("the holder's node");
        }
    }

    async fn set_outage(&self, outage: bool) {
        self.proxy.refuse(outage);
    }

    async fn set_silence(&self, silence: bool) {
        self.proxy.stall(silence);
    }

    async fn records(&self) -> Option<usize> {
        let client = self.server.client().await;
        match client.count_descendants_number(&self.root).await {
            Ok(count) => Some(count),
            Err(Error::NoNode) => Some(0),
            Err(error) => panic!("{error}"),
        }
    }
}

#[async_trait(?Send)]
impl Shared for ZooKeeperStore {
    /// What a dead holder had comes free within the test.
    fn url(&self) -> String {
        self.url_with("session_timeout=2500ms")
    }
}

conformance!(crate::ZooKeeperStore);

contenders!(crate::ZooKeeperStore);
