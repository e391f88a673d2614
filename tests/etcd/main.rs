//! The etcd store: the conformance suite on a real server, and what only a
//! store with leases, watches and consensus can do wrong.

#![cfg(feature = "etcd")]

#[path = "../support/mod.rs"]
mod support;

mod auth;
mod bad_input;
mod cluster;
mod etcdctl;
mod ghosts;
mod hand_over;
mod harness;
mod idle;
mod lock_service;
mod names;
mod restarts;
#[cfg(feature = "tls")]
mod tls;
mod traps;

use std::sync::Arc;
use std::time::Duration;

use dlock::Config;
use dlock_conformance::processes::Shared;
use dlock_conformance::{Store, async_trait, conformance, contenders};

use support::etcd::EtcdServer;
use support::proxy::Proxy;

/// Its leases are renewed in time on a machine that does much else.
const SHORT_TTL: Duration = Duration::from_millis(1_500);

/// A server that others use too, under a prefix of the test's own, reached
/// through a proxy that can fail.
struct EtcdStore {
    server: Arc<EtcdServer>,
    proxy: Proxy,
    prefix: String,
}

impl EtcdStore {
    async fn start() -> Self {
        let server = EtcdServer::shared().await;
        Self {
            proxy: Proxy::to(server.port()),
            server,
            prefix: format!("test-{:016x}", fastrand::u64(..)),
        }
    }

    fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}/{}", self.proxy.port(), self.prefix)
    }

    /// Deletes every place in the queue for `key`.
    async fn take_away(&self, key: &str) {
        let queue = format!("{}/{key}/", self.prefix);
        let deleted = self.server.control(&["del", "--prefix", &queue]).await;
        assert_ne!(deleted.trim(), "0", "nobody held `{key}`");
    }

    async fn records(&self) -> usize {
        self.server.keys(&format!("{}/", self.prefix)).await.len()
    }
}

#[async_trait(?Send)]
impl Store for EtcdStore {
    async fn start() -> Self {
        Self::start().await
    }

    fn config(&self) -> Config {
        Config::from_url(&self.url()).expect("a valid URL")
    }

    fn url_at(&self, [port, ..]: [u16; 3]) -> Option<String> {
        Some(format!("etcd://127.0.0.1:{port}"))
    }

    async fn set_refused(&self, refused: bool) -> bool {
        self.proxy.shut(refused);
        true
    }

    fn short_ttl(&self) -> Duration {
        SHORT_TTL
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn take_away(&self, key: &str) {
        Self::take_away(self, key).await;
    }

    async fn set_outage(&self, outage: bool) {
        self.proxy.refuse(outage);
    }

    async fn set_silence(&self, silence: bool) {
        self.proxy.stall(silence);
    }

    async fn records(&self) -> Option<usize> {
        Some(Self::records(self).await)
    }
}

#[async_trait(?Send)]
impl Shared for EtcdStore {
    fn url(&self) -> String {
        Self::url(self)
    }
}

conformance!(crate::EtcdStore);

contenders!(crate::EtcdStore);
