//! The store on a Redis Cluster: the conformance suite on three real masters with
//! their replicas, and what only slots that move can do wrong.

#[cfg(feature = "tls")]
#[path = "../support/own_tls.rs"]
mod own_tls;
#[path = "../support/mod.rs"]
mod support;

mod acl;
mod bad_input;
mod ends;
mod failover;
mod harness;
mod reshard;
mod slots;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use dlock_conformance::{Costs, ShownTokens, Since, Store, async_trait, conformance, contenders};

use support::cluster::{Cluster, MASTERS};
use support::lent::Lent;
use support::polls::join_all;
use support::proxy::Proxy;
use support::redis::RedisServer;

/// A cluster for one test. Its nodes say that they are where proxies are. Its locks may
/// count only when more than half of the masters have them.
struct ClusterStore<const QUORUM: bool = false>(Lent<Cluster>);

impl<const QUORUM: bool> ClusterStore<QUORUM> {
    /// What stands behind the hosts of a URL.
    const MORE: &str = if QUORUM { "?quorum=masters" } else { "" };

    fn cluster(&self) -> &Cluster {
        &self.0
    }

    async fn restart(&mut self) {
        let masters = &mut self.0.servers[..MASTERS];
        join_all(masters.iter_mut().map(RedisServer::restart_saved)).await;
        self.cluster().is_whole().await;
    }

    /// But for the token counters, of which each slot has one at most.
    async fn records(&self) -> usize {
        self.cluster().keys().await.len()
    }
}

#[async_trait(?Send)]
impl<const QUORUM: bool> Store for ClusterStore<QUORUM> {
    async fn start() -> Self {
        Self(Lent::empty().await)
    }

    fn url(&self) -> String {
        self.cluster().url(Self::MORE)
    }

    fn shows_since(&self) -> Since {
        match QUORUM {
            true => Since::OfThoseWhoRenewed,
            false => Since::OfThoseWhoWaited,
        }
    }

    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfThoseWhoRenewed
    }

    fn leaves_out() -> &'static [&'static str] {
        if QUORUM {
            &["permits", "once", "cost"]
        } else {
            &[]
        }
    }

    fn proxies(&self) -> &[Proxy] {
        &self.cluster().proxies
    }

    /// It is six servers.
    fn request_timeout(&self) -> Duration {
        Duration::from_millis(1_000)
    }

    fn short_ttl(&self) -> Duration {
        Duration::from_millis(if QUORUM { 1_500 } else { 900 })
    }

    async fn take_away(&self, key: &str) {
        let names = if QUORUM {
            format!("dlock:vote:{{*}}:{{{key}}}")
        } else {
            format!("dlock:{{{key}}}")
        };
        let mut deleted = 0;
        for master in self.cluster().masters() {
            let found: Vec<String> = master.command(&["KEYS", &names]).await;
            for name in found {
                deleted += master.command::<usize>(&["DEL", &name]).await;
            }
        }
        let least = if QUORUM { MASTERS / 2 + 1 } else { 1 };
        assert!(deleted >= least, "nobody held `{key}`");
    }

    async fn restart(&mut self) -> bool {
        self.restart().await;
        true
    }

    async fn records(&self) -> Option<usize> {
        Some(self.records().await)
    }

    fn costs(&self) -> Option<Costs> {
        let costs = Costs::of_section(11).waiting(2.5, 1).idle(1);
        (!QUORUM).then_some(costs)
    }

    async fn asked(&self) -> u64 {
        let mut commands = 0;
        for master in self.cluster().masters() {
            commands += master.commands_so_far().await;
        }
        commands
    }
}

mod quorum {
    // How to vote is tested with Redlock, and how to find a slot without votes.
    super::conformance!(crate::ClusterStore<true>:
        tokens keys exclusion claims release leases queues drops outages refused late_commands
        restart load;
        start_durable floors { a_floor_is_obeyed_by_who_does_not_name_it }
        start breaking { a_broken_holder_is_told }
    );

    mod whole {
        crate::conformance!(#[ignore = "./tests/run.sh --all"] crate::ClusterStore<true>);
    }

    super::contenders!(crate::ClusterStore<true>:
        processes_add_up
        a_killed_holder_frees_its_lock
        a_paused_holder_that_writes_late_is_refused
        kills_and_pauses_at_random_moments_add_up
    );
}

conformance!(crate::ClusterStore);
contenders!(crate::ClusterStore);
