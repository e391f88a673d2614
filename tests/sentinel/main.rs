//! Redis with sentinels: the conformance suite on a real deployment, and what
//! only a master that moves can do wrong.

#[cfg(feature = "tls")]
#[path = "../support/own_tls.rs"]
mod own_tls;
#[path = "../support/mod.rs"]
mod support;

mod acl;
mod failover;
mod naming;
mod replicas;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Mutex;
use std::time::Duration;

use dlock_conformance::{ShownTokens, Since, Store, async_trait, conformance, contenders};

use support::lent::{Lendable, Lent, Pool};
use support::proxy::Proxy;
use support::redis::RedisServer;
use support::sentinel::{Deployment, MASTER, Passwords, replicated};

/// A deployment whose master is reached through a proxy that can fail: that is where its
/// sentinels say it is.
struct BehindAProxy {
    deployment: Deployment,
    proxy: Proxy,
}

impl Lendable for BehindAProxy {
    fn pool() -> &'static Mutex<Pool<Self>> {
        static POOL: Mutex<Pool<BehindAProxy>> = Mutex::new(Pool::none());
        &POOL
    }

    async fn calm() -> Self {
        let mut proxy = None;
        let deployment = Deployment::calm(&Passwords::default(), |port| {
            proxy.insert(Proxy::to(port)).port()
        })
        .await;
        // After this time a sentinel tells the replicas to follow the address that it knows. That
        // is the proxy's, which may fail.
        let words = ["SENTINEL", "SET", MASTER, "failover-timeout", "3600000"];
        for sentinel in &deployment.sentinels {
            sentinel.command::<()>(&words).await;
        }
        let proxy = proxy.expect("made along with the deployment");
        Self { deployment, proxy }
    }

    async fn clear(&self) {
        let master = &self.deployment.servers[0];
        master.command::<()>(&["FLUSHALL"]).await;
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }
}

/// A deployment for one test. Its locks may count only when so many replicas have them.
struct SentinelStore<const REPLICAS: u32 = 0>(Lent<BehindAProxy>);

impl<const REPLICAS: u32> SentinelStore<REPLICAS> {
    fn master(&self) -> &RedisServer {
        &self.0.deployment.servers[0]
    }
}

#[async_trait(?Send)]
impl<const REPLICAS: u32> Store for SentinelStore<REPLICAS> {
    async fn start() -> Self {
        let store = Self(Lent::empty().await);
        if REPLICAS > 0 {
            replicated(store.master(), 2).await;
        }
        store
    }

    fn leaves_out() -> &'static [&'static str] {
        &["cost"]
    }

    fn url(&self) -> String {
        self.0.deployment.url(&format!("?replicas={REPLICAS}"))
    }

    /// A renewal may need a second server and its answer.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(if REPLICAS > 0 { 1_800 } else { 900 })
    }

    fn shows_since(&self) -> Since {
        Since::OfThoseWhoWaited
    }

    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfThoseWhoRenewed
    }

    fn proxies(&self) -> &[Proxy] {
        self.0.proxies()
    }

    async fn take_away(&self, key: &str) {
        let lock = format!("dlock:{{{key}}}");
        let deleted: u32 = self.master().command(&["DEL", &lock]).await;
        assert_eq!(deleted, 1, "nobody held `{key}`");
    }

    async fn restart(&mut self) -> bool {
        self.0.deployment.servers[0].restart_saved().await;
        replicated(self.master(), 2).await;
        true
    }

    async fn records(&self) -> Option<usize> {
        Some(self.master().command(&["DBSIZE"]).await)
    }
}

mod on_a_replica_too {
    // Replicas confirm grants, renewals, marks and floors. The rest is what a master does.
    super::conformance!(crate::SentinelStore<1>:
        tokens exclusion release leases queues drops late_commands restart;
        start_durable floors { a_floor_is_obeyed_by_who_does_not_name_it }
        start permits { all_permits_are_in_use_and_no_more a_permit_is_renewed }
        start once {
            what_was_done_is_remembered
            a_mark_whose_answer_was_lost_is_made
            a_mark_is_made_up_for_after_an_outage
            copies_that_come_whenever_do_it_once
        }
        start outages {
            an_outage_is_its_own_error
            a_store_that_comes_back_serves_again
            a_lease_outlives_a_short_outage
            a_lease_does_not_outlive_a_long_silence
            a_release_is_made_up_for_after_an_outage
        }
        start load { two_hundred_contenders_add_up }
    );

    mod whole {
        crate::conformance!(#[ignore = "./tests/run.sh --all"] crate::SentinelStore<1>);
    }
}

conformance!(crate::SentinelStore);
contenders!(crate::SentinelStore);
