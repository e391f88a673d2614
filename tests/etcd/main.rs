//! The etcd store: the conformance suite on a real server, and what only a
//! store with leases, watches and consensus can do wrong.

#![cfg(feature = "etcd")]

#[path = "../support/property.rs"]
mod property;
#[path = "../support/mod.rs"]
mod support;

mod auth;
mod bad_input;
mod batches;
mod cluster;
mod etcdctl;
mod foreign;
mod ghosts;
mod hand_over;
mod harness;
mod lists;
mod lock_service;
mod marks;
#[cfg(feature = "redis")]
mod moving;
mod names;
mod since;
#[cfg(feature = "tls")]
mod tls;
mod traps;
mod wake_ups;

use std::sync::Arc;
use std::time::Duration;

use dlock::Config;
use dlock_conformance::{Costs, Since, Store, async_trait, conformance, contenders};

use support::etcd::EtcdServer;
use support::proxy::Proxy;

/// Its leases are renewed in time on a machine that does much else.
const SHORT_TTL: Duration = Duration::from_millis(1_500);

/// A lease is confirmed now and then, for all locks.
const COSTS: Costs = Costs::of_section(2).waiting(2.0, 1_000).idle(2);

/// A server that others use too, under a prefix of the test's own, reached
/// through a proxy that can fail.
struct EtcdStore {
    server: Arc<EtcdServer>,
    proxy: Proxy,
    prefix: String,
}

impl EtcdStore {
    fn at(server: Arc<EtcdServer>) -> Self {
        Self {
            proxy: Proxy::to(server.port()),
            server,
            prefix: format!("test-{:016x}", fastrand::u64(..)),
        }
    }

    /// Past the proxy.
    fn direct(&self) -> String {
        format!("etcd://127.0.0.1:{}/{}", self.server.port(), self.prefix)
    }
}

#[async_trait(?Send)]
impl Store for EtcdStore {
    async fn start() -> Self {
        Self::at(EtcdServer::shared().await)
    }

    /// On a server of the test's own.
    async fn start_alone() -> Self {
        Self::at(Arc::new(EtcdServer::start().await))
    }

    fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}/{}", self.proxy.port(), self.prefix)
    }

    fn shows_since(&self) -> Since {
        Since::OfThoseWhoWaitedAndRenewed
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn past_proxies(&self) -> Option<Config> {
        Some(Config::from_url(&self.direct()).expect("a valid URL"))
    }

    fn short_ttl(&self) -> Duration {
        SHORT_TTL
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Deletes every place in the queue for `key`.
    async fn take_away(&self, key: &str) {
        let queue = format!("{}/{key}/", self.prefix);
        let deleted = self.server.control(&["del", "--prefix", &queue]).await;
        assert_ne!(deleted.trim(), "0", "nobody held `{key}`");
    }

    async fn restart(&mut self) -> bool {
        let server = Arc::get_mut(&mut self.server);
        server.expect("a server of the test's own").restart().await;
        true
    }

    async fn records(&self) -> Option<usize> {
        Some(self.server.keys(&format!("{}/", self.prefix)).await.len())
    }

    fn costs(&self) -> Option<Costs> {
        Some(COSTS)
    }

    /// Messages that the server has had from its clients, on streams and else.
    async fn asked(&self) -> u64 {
        let received = "grpc_server_msg_received_total";
        self.server.metric(received, "").await
    }
}

conformance!(crate::EtcdStore);

contenders!(crate::EtcdStore);
