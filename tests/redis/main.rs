//! The Redis store: the conformance suite on a real server, what only Redis
//! can do wrong, and what one process has once.

#![cfg(feature = "redis")]

#[cfg(feature = "tls")]
#[path = "../support/own_tls.rs"]
mod own_tls;
#[path = "../support/property.rs"]
mod property;
#[path = "../support/mod.rs"]
mod support;

mod acl;
mod backend;
mod bad_input;
mod durability;
mod faults;
mod fencing;
mod foreign;
mod global;
mod own;
mod refusals;
mod secrets;
mod server;
mod short_ttl;
mod since;
#[cfg(feature = "tls")]
mod tls;
#[cfg(unix)]
mod unix;

use dlock::Config;
use dlock_conformance::{Costs, ShownTokens, Since, Store, async_trait, conformance, contenders};

use support::proxy::Proxy;
use support::redis::RedisServer;

/// A server of the test's own, reached through a proxy that can fail.
struct RedisStore {
    server: RedisServer,
    proxy: Proxy,
}

#[async_trait(?Send)]
impl Store for RedisStore {
    async fn start() -> Self {
        let server = RedisServer::start().await;
        let proxy = Proxy::to(server.port());
        Self { server, proxy }
    }

    fn url(&self) -> String {
        self.server.url_through(self.proxy.port())
    }

    fn shows_since(&self) -> Since {
        Since::OfThoseWhoWaited
    }

    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfThoseWhoRenewed
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn past_proxies(&self) -> Option<Config> {
        Some(Config::from_url(&self.server.url()).expect("a valid URL"))
    }

    async fn take_away(&self, key: &str) {
        let deleted: u32 = self.server.command(&["DEL", &lock_name(key)]).await;
        assert_eq!(deleted, 1, "nobody held `{key}`");
    }

    async fn restart(&mut self) -> bool {
        self.server.restart_saved().await;
        true
    }

    async fn records(&self) -> Option<usize> {
        Some(self.server.command(&["DBSIZE"]).await)
    }

    fn costs(&self) -> Option<Costs> {
        Some(Costs::of_section(5).waiting(2.0, 1_000))
    }

    async fn asked(&self) -> u64 {
        self.server.commands_so_far().await
    }
}

/// Where a lock is in Redis: part of what dlock documents, as operators and
/// ACLs need it.
fn lock_name(key: &str) -> String {
    format!("dlock:{{{key}}}")
}

conformance!(crate::RedisStore);
contenders!(crate::RedisStore);
