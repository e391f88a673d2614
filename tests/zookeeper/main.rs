//! The ZooKeeper store: the conformance suite on a real server, and what only a
//! store with sessions, watches and consensus can do wrong.

#![cfg(feature = "zookeeper")]

#[path = "../support/property.rs"]
mod property;
#[path = "../support/mod.rs"]
mod support;

mod curator;
mod ends;
mod ensemble;
mod examine;
mod foreign;
mod harness;
mod late;
mod lists;
mod marks;
mod messages;
mod numbers;
mod secure;
mod since;
mod taken_out;
mod traps;
mod wake_ups;

use std::sync::Arc;
use std::time::Duration;

use dlock::Config;
use dlock_conformance::{Costs, Since, Store, async_trait, conformance, contenders};
use zookeeper_client::Error;

use support::proxy::Proxy;
use support::wait::eventually_blocking;
use support::zookeeper::{Setup, ZooKeeperServer, nodes};

/// A folder of the test's own, in a server that others use too and which is
/// reached through a proxy that can fail.
struct ZooKeeperStore {
    server: Arc<ZooKeeperServer>,
    proxy: Proxy,
    root: String,
    session: &'static str,
}

impl ZooKeeperStore {
    fn at(server: Arc<ZooKeeperServer>, session: &'static str) -> Self {
        Self {
            proxy: Proxy::to(server.port()),
            server,
            root: format!("/test-{:016x}", fastrand::u64(..)),
            session,
        }
    }

    fn url_with(&self, options: &str) -> String {
        let Self { proxy, root, .. } = self;
        format!("zookeeper://127.0.0.1:{}{root}?{options}", proxy.port())
    }
}

#[async_trait(?Send)]
impl Store for ZooKeeperStore {
    async fn start() -> Self {
        Self::at(ZooKeeperServer::shared().await, "12s")
    }

    async fn start_alone() -> Self {
        let server = Setup::default().start().await;
        Self::at(Arc::new(server), "40s")
    }

    fn shows_since(&self) -> Since {
        Since::OfTheLastAndThoseWhoWaitedAndRenewed
    }

    /// What a dead holder had comes free within the test.
    fn url(&self) -> String {
        self.url_with("session_timeout=2500ms")
    }

    fn config(&self) -> Config {
        let session = format!("session_timeout={}", self.session);
        Config::from_url(&self.url_with(&session)).expect("a valid URL")
    }

    /// A write of a Java machine, on a machine that does much else.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn past_proxies(&self) -> Option<Config> {
        let Self { server, root, .. } = self;
        let url = format!("zookeeper://127.0.0.1:{}{root}", server.port());
        Some(Config::from_url(&url).expect("a valid URL"))
    }

    async fn take_away(&self, key: &str) {
        let client = self.server.client().await;
        let folder = format!("{}/{key}", self.root);
        if let Some(holder) = nodes(&client, &folder).await.first() {
            let path = format!("{folder}/{holder}");
            client.delete(&path, None).await.expect("the holder's node");
        }
    }

    async fn restart(&mut self) -> bool {
        let server = Arc::get_mut(&mut self.server);
        server.expect("a server of the test's own").restart().await;
        true
    }

    async fn records(&self) -> Option<usize> {
        let client = self.server.client().await;
        match client.count_descendants_number(&self.root).await {
            Ok(count) => Some(count),
            Err(Error::NoNode) => Some(0),
            Err(error) => panic!("{error}"),
        }
    }

    /// Its node is made, the folder listed behind it, and the node deleted. Sessions
    /// show that they live.
    fn costs(&self) -> Option<Costs> {
        Some(Costs::of_section(3).waiting(3.0, 1_000).idle(2))
    }

    async fn asked(&self) -> u64 {
        let requests = || self.server.number("zk_packets_received");
        eventually_blocking("it says what it was asked", requests)
    }
}

conformance!(crate::ZooKeeperStore);

contenders!(crate::ZooKeeperStore);
