//! Redis with sentinels: the conformance suite on a real deployment, and what
//! only a master that moves can do wrong.

#![cfg(feature = "redis")]

#[path = "../support/mod.rs"]
mod support;

mod acl;
mod failover;
mod naming;
mod replicas;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use dlock::Config;
use dlock_conformance::processes::Shared;
use dlock_conformance::{Store, async_trait, conformance, contenders};

use support::proxy::Proxy;
use support::redis::RedisServer;
use support::sentinel::{Deployment, Passwords, replicated};
use support::wait::eventually;

/// A deployment of the test's own. Its master is reached through a proxy that
/// can fail: that is where its sentinels say it is.
struct SentinelStore {
    deployment: Deployment,
    proxy: Proxy,
}

impl SentinelStore {
    fn master(&self) -> &RedisServer {
        &self.deployment.servers[0]
    }
}

#[async_trait(?Send)]
impl Store for SentinelStore {
    async fn start() -> Self {
        let mut proxy = None;
        let deployment = Deployment::calm(&Passwords::default(), |port| {
            proxy.insert(Proxy::to(port)).port()
        })
        .await;
        let proxy = proxy.expect("made along with the deployment");
        Self { deployment, proxy }
    }

    fn config(&self) -> Config {
        Config::from_url(&self.url()).expect("a valid URL")
    }

    fn url_at(&self, [a, b, c]: [u16; 3]) -> Option<String> {
        let hosts = format!("127.0.0.1:{a},127.0.0.1:{b},127.0.0.1:{c}");
        Some(format!("redis+sentinel://{hosts}/mymaster"))
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    async fn take_away(&self, key: &str) {
        let lock = format!("dlock:{{{key}}}");
        let deleted: u32 = self.master().command(&["DEL", &lock]).await;
        assert_eq!(deleted, 1, "nobody held `{key}`");
    }

    async fn restart(&mut self) -> bool {
        // While a replica is on its way, one is under way already.
        eventually("it is saved", async || {
            self.master().try_command::<String>(&["SAVE"]).await
        })
        .await;
        self.deployment.servers[0].restart().await;
        replicated(self.master(), 2).await;
        true
    }

    async fn records(&self) -> Option<usize> {
        Some(self.master().command(&["DBSIZE"]).await)
    }
}

#[async_trait(?Send)]
impl Shared for SentinelStore {
    fn url(&self) -> String {
        self.deployment.url("")
    }
}

/// The same, with locks that count only when a replica has them.
struct ReplicatedStore(SentinelStore);

#[async_trait(?Send)]
impl Store for ReplicatedStore {
    async fn start() -> Self {
        let store = SentinelStore::start().await;
        replicated(store.master(), 2).await;
        Self(store)
    }

    fn config(&self) -> Config {
        let url = self.0.deployment.url("?replicas=1");
        Config::from_url(&url).expect("a valid URL")
    }

    fn proxies(&self) -> &[Proxy] {
        self.0.proxies()
    }

    /// A renewal needs a second server and its answer.
    fn short_ttl(&self) -> Duration {
        2 * self.0.short_ttl()
    }

    async fn take_away(&self, key: &str) {
        self.0.take_away(key).await;
    }

    async fn restart(&mut self) -> bool {
        self.0.restart().await
    }

    async fn records(&self) -> Option<usize> {
        self.0.records().await
    }
}

mod on_a_replica_too {
    dlock_conformance::conformance!(crate::ReplicatedStore);
}

conformance!(crate::SentinelStore);
contenders!(crate::SentinelStore);
