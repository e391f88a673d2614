//! The Redlock store: the conformance suite on five real servers, and what only
//! a majority can do wrong.

#[cfg(feature = "tls")]
#[path = "../support/own_tls.rs"]
mod own_tls;
#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod fencing;
mod harness;
mod nodes;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use dlock::Config;
use dlock_conformance::{Costs, ShownTokens, Since, Store, async_trait, conformance, contenders};

use support::nodes::{Nodes, redlock_url};
use support::polls::join_all;
use support::proxy::Proxy;
use support::redis::RedisServer;

/// How many servers the locks are on.
const NODES: usize = 5;

/// Servers of the test's own, each reached through a proxy that can fail.
struct RedlockStore {
    nodes: Nodes,
    proxies: Vec<Proxy>,
}

#[async_trait(?Send)]
impl Store for RedlockStore {
    async fn start() -> Self {
        let nodes = Nodes::start(NODES).await;
        let proxies = nodes.iter().map(|node| Proxy::to(node.port())).collect();
        Self { nodes, proxies }
    }

    fn url(&self) -> String {
        let ports: Vec<_> = self.proxies.iter().map(Proxy::port).collect();
        redlock_url(&ports)
    }

    fn shows_since(&self) -> Since {
        Since::OfThoseWhoRenewed
    }

    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfThoseWhoRenewed
    }

    fn leaves_out() -> &'static [&'static str] {
        &["permits", "once"]
    }

    fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    fn past_proxies(&self) -> Option<Config> {
        Some(Config::from_url(&self.nodes.url()).expect("a valid URL"))
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    async fn take_away(&self, key: &str) {
        let mut deleted = 0;
        for node in self.nodes.iter() {
            deleted += node.command::<usize>(&["DEL", &lock_name(key)]).await;
        }
        assert!(deleted > NODES / 2, "nobody held `{key}`");
    }

    async fn restart(&mut self) -> bool {
        join_all(self.nodes.iter_mut().map(RedisServer::restart_saved)).await;
        true
    }

    async fn records(&self) -> Option<usize> {
        let mut records = 0;
        for node in self.nodes.iter() {
            records += node.command::<usize>(&["DBSIZE"]).await;
        }
        Some(records)
    }

    fn costs(&self) -> Option<Costs> {
        Some(Costs::of_section(10).waiting(2.0, 1_000))
    }

    /// Of the node that was asked most.
    async fn asked(&self) -> u64 {
        let mut most = 0;
        for node in self.nodes.iter() {
            most = most.max(node.commands_so_far().await);
        }
        most
    }
}

/// Where a lock is on each of the servers.
fn lock_name(key: &str) -> String {
    format!("dlock:{{{key}}}")
}

conformance!(crate::RedlockStore);

contenders!(crate::RedlockStore);
