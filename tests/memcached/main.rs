//! The memcached store: the conformance suite on a real server, and what only a
//! cache can do wrong.

#[path = "../support/property.rs"]
mod property;
#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod foreign;
mod ghosts;
mod greed;
mod harness;
mod limits;
mod losses;

use std::time::Duration;

use dlock::{Config, LockManager};
use dlock_conformance::{Costs, ShownTokens, Since, Store, async_trait, conformance, contenders};

use support::memcached::{Log, MemcachedServer, memcached_url};
use support::proxy::Proxy;

/// A server of the test's own, reached through a proxy that can fail.
struct MemcachedStore {
    server: MemcachedServer,
    log: Log,
    proxy: Proxy,
}

/// What memcached keeps is whole seconds, and the shortest lease three.
const TTL: Duration = Duration::from_secs(3);

#[async_trait(?Send)]
impl Store for MemcachedStore {
    async fn start() -> Self {
        let server = MemcachedServer::start().await;
        Self {
            log: server.log(),
            proxy: Proxy::to(server.port()),
            server,
        }
    }

    fn has_tokens(&self) -> bool {
        false
    }

    fn url(&self) -> String {
        memcached_url(self.proxy.port())
    }

    fn contenders_ttl(&self) -> Duration {
        TTL
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn past_proxies(&self) -> Option<Config> {
        Some(Config::from_url(&self.server.url()).expect("a valid URL"))
    }

    fn short_ttl(&self) -> Duration {
        TTL
    }

    fn shows_since(&self) -> Since {
        Since::OfAllByTheirClocks
    }

    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfNone
    }

    fn leaves_out() -> &'static [&'static str] {
        &["permits", "restart"]
    }

    fn counts_waiters(&self) -> bool {
        false
    }

    async fn waiters(&self, _manager: &LockManager, key: &str) -> usize {
        self.log.waiters(&lock_name(key))
    }

    async fn take_away(&self, key: &str) {
        assert!(self.server.delete(&lock_name(key)), "nobody held `{key}`");
    }

    async fn records(&self) -> Option<usize> {
        Some(self.server.items().len())
    }

    /// Who waits pauses for a quarter of a second, less a quarter of that, between two
    /// looks at one lock.
    fn costs(&self) -> Option<Costs> {
        Some(Costs::of_section(1).waiting(4.0 / 0.75, 1))
    }

    async fn asked(&self) -> u64 {
        self.server.stat("cmd_get") + self.server.stat("cmd_set")
    }
}

/// Where a lock is in memcached.
fn lock_name(key: &str) -> String {
    format!("dlock:{key}")
}

conformance!(crate::MemcachedStore);
contenders!(crate::MemcachedStore);
