//! A master that is replaced, behind sentinels and in a cluster; and locks that count only
//! when replicas have them.

use std::marker::PhantomData;
use std::time::Duration;

use dlock_conformance::failover::{Failure, Led};
use dlock_conformance::{Store, async_trait, conformance, failovers};

use crate::recipes::Recipe;
use crate::support::calm::unless_it_stands_still;
use crate::support::cluster::{Cluster, follows, may_move};
use crate::support::locks::{config, connect, held, is_unavailable, says, wants};
use crate::support::sentinel::{Deployment, Passwords, replicated};
use crate::support::wait::{HANG, eventually, within};
use crate::url;

/// Its locks count only when so many replicas have them.
struct Sentinels<R, const REPLICAS: u32 = 0>(Deployment, PhantomData<R>);

#[async_trait(?Send)]
impl<R: Recipe, const REPLICAS: u32> Store for Sentinels<R, REPLICAS> {
    crate::recipes::abilities!();

    async fn start() -> Self {
        Self(Deployment::watchful().await, PhantomData)
    }

    fn url(&self) -> String {
        format!("{}&replicas={REPLICAS}", url(&self.0.url(""), R::NAME))
    }

    /// A renewal may need a second server and its answer.
    fn short_ttl(&self) -> Duration {
        Duration::from_millis(1_800)
    }

    fn request_timeout(&self) -> Duration {
        Duration::from_millis(1_000)
    }

    async fn records(&self) -> Option<usize> {
        Some(crate::records(&self.0.servers[0].keys().await))
    }
}

#[async_trait(?Send)]
impl<R: Recipe, const REPLICAS: u32> Led for Sentinels<R, REPLICAS> {
    fn failures(&self) -> &[Failure] {
        &[Failure::Dies]
    }

    fn forgets(&self) -> bool {
        true
    }

    async fn has_told(&self, _: &str) {
        replicated(&self.0.servers[0], 2).await;
    }

    async fn lose_leader(&mut self, _: &str, _: Failure) {
        self.0.fail_over().await;
    }

    async fn leader_is_back(&mut self) {
        self.0.revive().await;
    }
}

struct Masters<R> {
    cluster: Cluster,
    lost: Option<usize>,
    recipe: PhantomData<R>,
}

impl<R> Masters<R> {
    /// The number of the master that has a lock.
    async fn master_of(&self, key: &str) -> usize {
        let [_, master, _] = may_move(self.cluster.slot(key).await);
        master
    }
}

#[async_trait(?Send)]
impl<R: Recipe> Store for Masters<R> {
    crate::recipes::abilities!();

    async fn start() -> Self {
        Self {
            cluster: Cluster::watchful().await,
            lost: None,
            recipe: PhantomData,
        }
    }

    fn url(&self) -> String {
        url(&self.cluster.url(""), R::NAME)
    }
}

#[async_trait(?Send)]
impl<R: Recipe> Led for Masters<R> {
    fn failures(&self) -> &[Failure] {
        &[Failure::Dies]
    }

    fn forgets(&self) -> bool {
        true
    }

    async fn has_told(&self, key: &str) {
        let master = &self.cluster.servers[self.master_of(key).await];
        // In its slot.
        master.has_told(1, &format!("mark:{{{key}}}")).await;
    }

    async fn lose_leader(&mut self, key: &str, _: Failure) {
        let master = self.master_of(key).await;
        self.cluster.fail_over(master).await;
        self.lost = Some(master);
    }

    async fn leader_is_back(&mut self) {
        let lost = self.lost.take().expect("one that was lost");
        self.cluster.servers[lost].restart().await;
        follows(&self.cluster.servers[lost]).await;
    }
}

mod behind_sentinels {
    use super::{conformance, failovers};

    failovers!(crate::failover::Sentinels<crate::recipes::Fenced, 1>:
        a_lease_and_its_waiters_go_along
    );

    mod in_order {
        super::failovers!(crate::failover::Sentinels<crate::in_order::Hasty>: processes_go_on);
    }

    // The rest is what one server does.
    conformance!(crate::failover::Sentinels<crate::recipes::ReadWrite, 1>:
        start exclusion { readers_share_and_a_writer_is_alone }
        start release { nothing_is_left_behind }
        start breaking { a_broken_holder_is_told }
        start queues { a_released_lock_wakes_its_waiter }
        start load { ten_contenders_add_up }
    );
}

mod in_a_cluster {
    use super::failovers;

    failovers!(crate::failover::Masters<crate::recipes::Fenced>: a_lease_and_its_waiters_go_along);

    mod in_order {
        super::failovers!(crate::failover::Masters<crate::in_order::Hasty>: processes_go_on);
    }
}

/// Whoever has a lock with `replicas=2`, so have the replicas by then; and what too few of
/// them have is not had.
#[tokio::test]
async fn a_lock_that_is_had_is_on_the_replicas() {
    let deployment = Deployment::calm(&Passwords::default(), |port| port).await;
    let [master, first, second] = &deployment.servers[..] else {
        panic!("three servers");
    };
    replicated(master, 2).await;
    for recipe in ["lock", "fenced", "fair", "read-write"] {
        let url = format!("{}&replicas=2", url(&deployment.url(""), recipe));
        let manager = connect(config(&url)).await;
        for read in [false, recipe == "read-write"] {
            for round in 0..5 {
                let key = format!("{recipe}:{round}");
                let guard = held(wants(manager.lock(&*key), read)).await;
                let mut keys = master.keys().await;
                keys.sort();
                assert!(keys.contains(&key), "{keys:?}");
                for replica in [first, second] {
                    let mut there = replica.keys().await;
                    there.sort();
                    assert_eq!(there, keys);
                }
                guard.release().await.expect("the release");
            }
        }
        // One that has not long to wait.
        let limit = Duration::from_secs(2);
        let hasty = connect(config(&url).request_timeout(limit)).await;
        second.pause();
        unless_it_stands_still(limit / 4, async || {
            let error = is_unavailable(within(HANG, hasty.lock(recipe).try_acquire()).await);
            says(&error, &["`mymaster`", "`replicas=2`"]);
        })
        .await;
        eventually("it is given back", async || {
            let is_there: bool = master.command(&["EXISTS", recipe]).await;
            (!is_there).then_some(())
        })
        .await;
        second.resume();
        replicated(master, 2).await;
    }
}
