//! Masters that die while their locks are held and waited for.

use std::time::{Duration, Instant};

use dlock::{LockError, LockManager};
use dlock_conformance::failover::{Failure, Led};
use dlock_conformance::{Store, async_trait, failovers};

use crate::harness::{connect, key_on, lock_name, patient};
use crate::support::calm::unless_it_stands_still;
use crate::support::cluster::{Cluster, LONG, MASTERS, SHORT, follows};
use crate::support::ghosts::Processes;
use crate::support::locks::{
    self, had, healed_at, held, is_busy, is_unavailable, queued, says, served,
};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, eventually, until, within};

/// Longer than a failover takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(90);

const TTL: Duration = Duration::from_secs(30);

/// On a machine that stands still for so long, a failover may outlast a short lease.
const STILL: Duration = Duration::from_millis(250);

/// A cluster that replaces its masters.
struct Watchful<const QUORUM: bool = false> {
    cluster: Cluster,
    lost: Option<usize>,
}

impl<const QUORUM: bool> Watchful<QUORUM> {
    async fn connect(&self) -> LockManager {
        let config = self.config().request_timeout(PATIENCE).ttl(TTL);
        LockManager::connect(config).await.expect("a connection")
    }

    /// The number of the master that has a lock.
    async fn master_of(&self, key: &str) -> usize {
        self.cluster.slot(&lock_name(key)).await * MASTERS / 16384
    }
}

#[async_trait(?Send)]
impl<const QUORUM: bool> Store for Watchful<QUORUM> {
    async fn start() -> Self {
        Self {
            cluster: Cluster::watchful().await,
            lost: None,
        }
    }

    fn url(&self) -> String {
        self.cluster
            .url(if QUORUM { "?quorum=masters" } else { "" })
    }
}

#[async_trait(?Send)]
impl<const QUORUM: bool> Led for Watchful<QUORUM> {
    fn failures(&self) -> &[Failure] {
        &[Failure::Dies]
    }

    fn forgets(&self) -> bool {
        true
    }

    async fn has_told(&self, key: &str) {
        let master = self.master_of(key).await;
        replicated(&self.cluster.servers[master], key).await;
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

failovers!(crate::failover::Watchful);

mod with_most_masters {
    dlock_conformance::failovers!(crate::failover::Watchful<true>: processes_go_on);
}

/// Locks of the other masters notice nothing, and do not wait for the failover.
#[tokio::test]
async fn the_other_masters_go_on() {
    let mut store = Watchful::<false>::start().await;
    let manager = store.connect().await;
    let elsewhere = key_on(&store.cluster, 2).await;
    had(&manager, &*elsewhere).await;
    store.cluster.servers[1].kill();
    tokio::select! {
        () = had(&manager, &*elsewhere) => {}
        () = store.cluster.replica_is_master(1) => panic!("it waited for the failover"),
    }
}

/// A master that says nothing more while its connections stay open, as when its
/// machine loses power: its leases go on with its replica, although nobody asks
/// for anything but their renewal.
#[tokio::test]
async fn a_lease_outlives_a_silent_master() {
    unless_it_stands_still(STILL, outlives_a_silent_master).await;
}

async fn outlives_a_silent_master() {
    let store = Watchful::<false>::start().await;
    let (holder, other) = (store.connect().await, store.connect().await);
    let key = key_on(&store.cluster, 1).await;
    let [master, replica] = [1, MASTERS + 1].map(|number| &store.cluster.servers[number]);
    // Over before the nodes would be asked without cause.
    let lock = holder.lock(key.as_str()).ttl(Duration::from_secs(12));
    let guard = lock.acquire().await.expect("the lock");
    replicated(master, &key).await;
    master.pause();
    store.cluster.replica_is_master(1).await;
    let name = lock_name(&key);
    let left = async || replica.command::<i64>(&["PTTL", &name]).await;
    let before = left().await;
    tokio::select! {
        _ = until("it is renewed there", left, |&left| left > before) => {}
        _ = guard.lost() => panic!("the lease was lost"),
    }
    // Back with its old data, it is asked by nobody.
    master.resume();
    is_busy(within(HANG, other.lock(key.as_str()).try_acquire()).await);
    assert!(guard.is_held());
    let token = guard.token();
    within(HANG, guard.release()).await.expect("the release");
    assert!(held(other.lock(key.as_str())).await.token() > token);
}

/// While one master says nothing, a lock of another is not waited for any more. The connection to
/// that one stays: others may listen over it.
#[tokio::test]
async fn what_is_left_at_one_master_does_not_wait_for_another() {
    unless_it_stands_still(STILL, leaves_one_beside_another).await;
}

async fn leaves_one_beside_another() {
    let cluster = Cluster::start(LONG).await;
    let url = cluster.url("");
    let (holder, waiter) = (connect(&url).await, patient(&url).await);
    let [silent, other] = [key_on(&cluster, 0).await, key_on(&cluster, 1).await];
    let [silent_guard, other_guard] = [
        held(holder.lock(silent.as_str())).await,
        held(holder.lock(other.as_str())).await,
    ];
    let waits = |key: &str| tokio::spawn(waiter.lock(key).acquire());
    let (waits_on, is_served) = (waits(&silent), waits(&other));
    queued(&holder, &silent, 1).await;
    queued(&holder, &other, 1).await;
    let clients = async || -> String {
        let words = ["CLIENT", "LIST", "TYPE", "pubsub"];
        cluster.servers[1].command(&words).await
    };
    let id = |client: &str| client.split(' ').next().map(str::to_owned);
    let listening = until("it listens", clients, |all| !all.is_empty()).await;
    let listening = id(&listening).expect("a number");
    other_guard.release().await.expect("the release");
    served(is_served)
        .await
        .release()
        .await
        .expect("the release");
    cluster.servers[0].pause();
    until("nobody listens there", clients, String::is_empty).await;
    let all: String = cluster.servers[1].command(&["CLIENT", "LIST"]).await;
    assert!(
        all.lines()
            .any(|client| id(client).as_ref() == Some(&listening)),
        "{listening}: {all}"
    );
    cluster.servers[0].resume();
    silent_guard.release().await.expect("the release");
    served(waits_on).await.release().await.expect("the release");
}

/// Waits until the replica of a master has what was written for this lock.
async fn replicated(master: &RedisServer, key: &str) {
    // In its slot.
    master
        .has_told(1, &format!("mark:{}", lock_name(key)))
        .await;
}

/// Kills a master whose replica has not heard of its last writes, and lets that
/// take over.
async fn lose_with_its_lag(cluster: &mut Cluster, number: usize, write: impl AsyncFnOnce()) {
    let [master, replica] = [number, MASTERS + number].map(|number| &cluster.servers[number]);
    master.loses(&[replica]).await;
    write().await;
    cluster.fail_over(number).await;
}

/// A lock that only its master knew of is lost with it: its holder hears so, and
/// the token of the next one is greater.
#[tokio::test]
async fn a_lock_can_be_lost_with_its_master() {
    let mut store = Watchful::<false>::start().await;
    let (holder, other) = (store.connect().await, store.connect().await);
    let key = key_on(&store.cluster, 0).await;
    healed_at(&holder, &key).await;
    let mut guard = None;
    lose_with_its_lag(&mut store.cluster, 0, async || {
        let lock = holder.lock(key.as_str()).ttl(Duration::from_secs(6));
        guard = Some(lock.acquire().await.expect("the lock"));
    })
    .await;
    let guard = guard.expect("a lease");
    let next = held(other.lock(key.as_str())).await;
    assert!(next.token() > guard.token());
    within(HANG, guard.lost()).await;
}

/// With `quorum=masters` it is not, as the other masters have it too.
#[tokio::test]
async fn a_lock_of_most_masters_is_not_lost_with_one() {
    let mut store = Watchful::<true>::start().await;
    let (holder, other) = (store.connect().await, store.connect().await);
    healed_at(&holder, "key").await;
    let mut guard = None;
    lose_with_its_lag(&mut store.cluster, 0, async || {
        guard = Some(held(holder.lock("key")).await);
    })
    .await;
    let guard = guard.expect("a lease");
    is_busy(within(HANG, other.lock("key").try_acquire()).await);
    assert!(guard.is_held());
    let token = guard.token();
    within(HANG, guard.release()).await.expect("the release");
    assert!(held(other.lock("key")).await.token() > token);
}

/// One master is replaced, and then another, as when all of them are restarted in
/// turn. The first vote is followed to where it is: without the second, for which
/// nobody is there, it is needed.
async fn masters_are_lost_one_after_the_other(lose: impl AsyncFn(&mut Cluster, usize)) {
    unless_it_stands_still(STILL, async || are_lost_one_after_the_other(&lose).await).await;
}

async fn are_lost_one_after_the_other(lose: &impl AsyncFn(&mut Cluster, usize)) {
    let mut store = Watchful::<true>::start().await;
    // Not the one that is looked at now and then.
    let looked_at = store.cluster.slot("dlock:voters").await * MASTERS / 16384;
    let others: Vec<_> = (0..MASTERS).filter(|&number| number != looked_at).collect();
    // Else the other nodes would say that there is something to be asked.
    for server in &store.cluster.servers {
        let words = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        server.command::<()>(&words).await;
    }
    // What is silent is not found out by waiting for its answers.
    let config = store.config().request_timeout(HANG).ttl(TTL);
    let manager = LockManager::connect(config).await.expect("a connection");
    healed_at(&manager, "key").await;
    // Over before the nodes would be asked without cause.
    let lock = manager.lock("held").ttl(Duration::from_secs(12));
    let guard = lock.acquire().await.expect("the lock");
    // With what was written before, its replica has the vote too.
    let there = key_on(&store.cluster, others[0]).await;
    replicated(&store.cluster.servers[others[0]], &there).await;
    lose(&mut store.cluster, others[0]).await;
    for number in [MASTERS + others[1], others[1]] {
        store.cluster.servers[number].kill();
    }
    tokio::select! {
        () = healed_at(&manager, "key") => {}
        _ = guard.lost() => panic!("the lease was lost"),
    }
    assert!(guard.is_held());
    within(HANG, guard.release()).await.expect("the release");
}

#[tokio::test]
async fn masters_die_one_after_the_other() {
    masters_are_lost_one_after_the_other(async |cluster, number| {
        cluster.fail_over(number).await;
    })
    .await;
}

/// The connections to the first stay open, and are left all the same.
#[tokio::test]
async fn masters_fall_silent_and_die() {
    masters_are_lost_one_after_the_other(async |cluster, number| {
        cluster.servers[number].pause();
        cluster.replica_is_master(number).await;
    })
    .await;
}

/// How often the nodes that run were asked who has which slot.
fn asked_for_the_map(cluster: &Cluster) -> u64 {
    let running = cluster.servers.iter().filter(|server| server.is_running());
    running.map(|server| server.calls("cluster|slots")).sum()
}

/// With no replica left, the slots of a master are gone until it is back, and
/// that is an outage like any other. The cluster says so for all of its slots.
#[tokio::test]
async fn slots_without_a_master_are_an_outage() {
    // The nodes soon take one that stands still for dead.
    unless_it_stands_still(STILL, slots_without_a_master).await;
}

async fn slots_without_a_master() {
    // Nobody has it find out that they are gone.
    let mut store = Watchful::<false> {
        cluster: Cluster::start(SHORT).await,
        lost: None,
    };
    let config = store.config().request_timeout(Duration::from_secs(2));
    let manager = locks::connect(config).await;
    let lost = key_on(&store.cluster, 0).await;
    let left = key_on(&store.cluster, 1).await;
    healed_at(&manager, &lost).await;
    store.cluster.servers[MASTERS].kill();
    store.cluster.servers[0].kill();
    let outage = async |key: &str| match manager.lock(key).run(async {}).await {
        Err(error @ LockError::Unavailable { .. }) => Some(error),
        Err(error) => panic!("{error:?}"),
        Ok(()) => None,
    };
    eventually("it is an outage", async || outage(&lost).await).await;
    eventually("the cluster is down", async || {
        let said = outage(&left).await?.to_string();
        said.contains("CLUSTERDOWN").then_some(())
    })
    .await;
    // Those who are left have other things to do than to be asked for the map.
    let (start, before) = (Instant::now(), asked_for_the_map(&store.cluster));
    while start.elapsed() < Duration::from_secs(5) {
        assert!(outage(&lost).await.is_some());
    }
    let asked = asked_for_the_map(&store.cluster) - before;
    assert!((1..40).contains(&asked), "{asked} times");
    store.cluster.servers[0].restart().await;
    healed_at(&manager, &lost).await;
    healed_at(&manager, &left).await;
}

/// The old master goes on for a moment without its replica, and serves a whole
/// queue: in that of the new master they are not waited for once more.
#[tokio::test]
async fn who_was_served_long_ago_is_not_waited_for() {
    let mut store = Watchful::<false>::start().await;
    let key = key_on(&store.cluster, 1).await;
    let backend = || {
        let store = dlock::backend::redis::Cluster::from_url(&store.url());
        store.expect("a URL").request_timeout(PATIENCE)
    };
    let processes = Processes::start([backend(), backend()]).await;
    let cut_off = async |cluster: &mut Cluster| {
        let [master, replica] = [1, MASTERS + 1].map(|number| &cluster.servers[number]);
        replicated(master, &key).await;
        master.loses(&[replica]).await;
    };
    let fail_over = async |cluster: &mut Cluster| cluster.fail_over(1).await;
    let cluster = &mut store.cluster;
    let ended = processes.outlive_their_ghosts(&key, cluster, cut_off, fail_over);
    ended.await;
}

/// The others answer; who has no time to wait for a failover is told which does not.
#[tokio::test]
async fn a_master_that_refuses_is_named() {
    let cluster = Cluster::behind_proxies().await;
    let manager = connect(&cluster.url("")).await;
    let key = key_on(&cluster, 1).await;
    had(&manager, &key).await;
    let (proxy, others) = (&cluster.proxies[1], key_on(&cluster, 0).await);
    proxy.shut(true);
    let short = Duration::from_millis(400);
    let refuses = format!("127.0.0.1:{} refuses connections", proxy.port());
    unless_it_stands_still(short / 4, async || {
        let held = within(HANG, manager.lock(&key).acquire_within(short)).await;
        says(&is_unavailable(held), &[&refuses]);
    })
    .await;
    had(&manager, &others).await;
    proxy.shut(false);
    healed_at(&manager, &key).await;
}
