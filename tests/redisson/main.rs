//! `layout=redisson`: the conformance suite on the keys of each of Redisson's classes, and
//! what only other people's keys can do wrong. Services in Java that use Redisson itself are
//! a program of its own, and the suite in a cluster is another.

#[path = "../support/mod.rs"]
mod support;

mod acl;
mod failover;
mod fair;
mod foreign;
mod heard;
mod recipes;
mod reshard;

use std::marker::PhantomData;

use dlock::Config;
use dlock_conformance::{Costs, Store, async_trait, conformance, contenders};

use recipes::{Recipe, records, url};
use support::proxy::Proxy;
use support::redis::RedisServer;

/// A server of the test's own, reached through a proxy that can fail.
struct RedissonStore<R> {
    server: RedisServer,
    proxy: Proxy,
    recipe: PhantomData<R>,
}

#[async_trait(?Send)]
impl<R: Recipe> Store for RedissonStore<R> {
    recipes::abilities!();

    async fn start() -> Self {
        let server = RedisServer::start().await;
        Self {
            proxy: Proxy::to(server.port()),
            server,
            recipe: PhantomData,
        }
    }

    fn url(&self) -> String {
        url(&self.server.url_through(self.proxy.port()), R::NAME)
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn past_proxies(&self) -> Option<Config> {
        Some(Config::from_url(&url(&self.server.url(), R::NAME)).expect("a valid URL"))
    }

    async fn take_away(&self, key: &str) {
        let deleted: u32 = self.server.command(&["DEL", key]).await;
        assert_eq!(deleted, 1, "nobody held `{key}`");
    }

    async fn restart(&mut self) -> bool {
        self.server.restart_saved().await;
        true
    }

    async fn records(&self) -> Option<usize> {
        Some(records(&self.server.keys().await))
    }

    fn costs(&self) -> Option<Costs> {
        // What the scripts run is counted too.
        Some(Costs::of_section(10).waiting(2.0, 1_000))
    }

    async fn asked(&self) -> u64 {
        self.server.commands_so_far().await
    }
}

contenders!(crate::RedissonStore<crate::recipes::Lock>);

mod lock {
    super::conformance!(crate::RedissonStore<crate::recipes::Lock>);
}

mod read_write {
    super::conformance!(crate::RedissonStore<crate::recipes::ReadWrite>);
}

mod in_order {
    super::conformance!(crate::RedissonStore<crate::recipes::Fair>);

    /// Those who are killed while they wait must not hold up a test for long.
    pub(crate) struct Hasty;

    impl crate::recipes::Recipe for Hasty {
        const NAME: &str = "fair&fair_wait=3s";
    }

    super::contenders!(crate::RedissonStore<crate::in_order::Hasty>:
        processes_add_up
        a_killed_holder_frees_its_lock
        a_killed_waiter_delays_the_rest_for_a_bounded_time
        a_paused_holder_stops_when_it_comes_back
        kills_and_pauses_at_random_moments_add_up
    );
}

mod fenced {
    super::conformance!(crate::RedissonStore<crate::recipes::Fenced>);
}
