//! Three members, of which one fails.

use std::time::Duration;

use dlock::{Config, LockManager};
use dlock_conformance::processes::{ENDLESS, Scene, Shared, all_end_well};
use dlock_conformance::{Store, async_trait};
use tokio::time::sleep;

use crate::harness::{config, connect, had, healed, queued, served, unavailable, waiting};
use crate::support::etcd::{Cluster, etcd_url};
use crate::support::wait::{HANG, until, within};

/// Longer than an election on a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);

/// One for each member to begin with, as far as that is to be had: who is asked
/// first is drawn at random.
async fn managers(url: &str) -> Vec<LockManager> {
    let mut all = Vec::new();
    for _ in 0..6 {
        let config = config(url).request_timeout(REQUEST_TIMEOUT);
        let connecting = within(HANG, LockManager::connect(config));
        all.push(connecting.await.expect("a connection"));
    }
    all
}

/// The leader dies: leases, places and tokens go on with the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_killed() {
    let mut cluster = Cluster::start().await;
    let url = etcd_url(&cluster.ports());
    let managers = managers(&url).await;
    let ttl = Duration::from_secs(8);
    let mut guards = Vec::new();
    for (number, manager) in managers.iter().enumerate() {
        let request = manager.lock(format!("held:{number}")).ttl(ttl);
        guards.push(request.acquire().await.expect("the lock"));
    }
    let guard = managers[0].lock("key").acquire().await.expect("the lock");
    let token = guard.token();
    let waiting = waiting(&managers[1], "key");
    queued(&managers[2], "key", 1).await;

    let leader = cluster.leader().await;
    cluster.servers[leader].kill();
    for manager in &managers {
        healed(manager).await;
    }
    // Their leases have been renewed since.
    sleep(ttl).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    guard.release().await.expect("the release");
    served(waiting).await;
    let again = managers[2].lock("key").acquire().await.expect("the lock");
    assert!(again.token() > token);
    cluster.servers[leader].restart().await;
    for manager in &managers {
        had(manager, "other").await;
    }
}

/// A member is paused: it is there, and silent. The watches and streams that
/// went to it say nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_member_paused_in_turn() {
    let cluster = Cluster::start().await;
    let url = etcd_url(&cluster.ports());
    let managers = managers(&url).await;
    let ttl = Duration::from_secs(12);
    for (member, server) in cluster.servers.iter().enumerate() {
        let others: Vec<_> = cluster.ports();
        let others: Vec<_> = others
            .into_iter()
            .filter(|port| *port != server.port())
            .collect();
        let holder = connect(&etcd_url(&others)).await;
        let mut guards = Vec::new();
        for (number, manager) in managers.iter().enumerate() {
            let request = manager.lock(format!("held:{member}:{number}")).ttl(ttl);
            guards.push(request.acquire().await.expect("the lock"));
        }
        let guard = holder.lock("key").acquire().await.expect("the lock");
        let mut all = Vec::new();
        for (number, manager) in managers.iter().enumerate() {
            all.push(waiting(manager, "key"));
            queued(&holder, "key", number + 1).await;
        }
        server.pause();
        healed(&holder).await;
        let _ = guard.release().await;
        for waiting in all {
            match within(HANG, waiting).await.expect("no panic") {
                // Whoever asks during an election may hear that it takes long.
                Ok(()) | Err(dlock::LockError::Unavailable { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        for manager in &managers {
            healed(manager).await;
        }
        assert!(
            guards.iter().all(|guard| guard.is_held()),
            "member {member}"
        );
        server.resume();
    }
    for manager in &managers {
        had(manager, "key").await;
    }
}

/// A member that serves clients and does not hear the others: what it says is
/// old, and what it is asked to write it cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_cut_off() {
    let mut cluster = Cluster::start().await;
    let url = etcd_url(&cluster.ports());
    let managers = managers(&url).await;
    let guard = managers[0].lock("key").acquire().await.expect("the lock");
    let waiting = waiting(&managers[1], "key");
    queued(&managers[2], "key", 1).await;
    let member = cluster.leader().await;
    cluster.cut_off(member).await;
    for manager in &managers {
        healed(manager).await;
    }
    // Those that come now may ask it first.
    for manager in self::managers(&url).await {
        had(&manager, "other").await;
        assert!(
            manager.inspect("key").await.expect("inspect").is_some(),
            "no old news"
        );
    }
    guard.release().await.expect("the release");
    served(waiting).await;
    // It alone is no cluster.
    let port = cluster.servers[member].port();
    let alone = config(&etcd_url(&[port]));
    unavailable(within(HANG, LockManager::connect(alone)).await);
    cluster.join(member).await;
    for manager in &managers {
        had(manager, "key").await;
    }
}

/// Without a majority nothing is had, and it heals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_is_gone() {
    let mut cluster = Cluster::start().await;
    let url = etcd_url(&cluster.ports());
    let manager = connect(&url).await;
    let guard = manager.lock("key").acquire().await.expect("the lock");
    let ports = cluster.ports();
    for server in &mut cluster.servers[..2] {
        server.kill();
    }
    unavailable(within(HANG, manager.lock("other").acquire()).await);
    unavailable(within(HANG, manager.lock("other").try_acquire()).await);
    unavailable(within(HANG, manager.inspect("key")).await);
    let (first, second) = cluster.servers.split_at_mut(1);
    tokio::join!(first[0].restart(), second[0].restart());
    healed(&manager).await;
    assert!(guard.is_held());
    guard.release().await.expect("the release");
    assert_eq!(cluster.ports(), ports);
}

#[async_trait(?Send)]
impl Store for Cluster {
    async fn start() -> Self {
        Self::start().await
    }

    fn config(&self) -> Config {
        Config::from_url(&self.url()).expect("a valid URL")
    }

    async fn take_away(&self, _: &str) {
        unreachable!("for the conformance suite only");
    }

    async fn set_outage(&self, _: bool) {
        unreachable!("for the conformance suite only");
    }
}

#[async_trait(?Send)]
impl Shared for Cluster {
    fn url(&self) -> String {
        etcd_url(&self.ports())
    }

    /// Longer than any election: nobody loses a lock here, so nobody may come in
    /// beside another.
    fn ttl(&self) -> Duration {
        Duration::from_secs(20)
    }
}

/// Several processes hold and wait while the leader hangs, comes back, and dies.
/// All of them go on by themselves, and nobody is inside beside another.
#[tokio::test]
async fn processes_go_on_without_their_leader() {
    const WORKERS: [&str; 3] = ["a", "b", "c"];
    let mut scene = Scene::around(Box::new(Cluster::start().await));
    let worker = |name| scene.worker("contend", name, 3, ENDLESS, false);
    let mut workers = WORKERS.map(worker);
    scene.others_add("nobody", 30).await;
    let leader = scene.store.leader().await;
    scene.store.servers[leader].pause();
    scene.others_add("nobody", 30).await;
    scene.store.servers[leader].resume();
    scene.others_add("nobody", 30).await;
    let leader = scene.store.leader().await;
    scene.store.servers[leader].kill();
    scene.others_add("nobody", 30).await;
    scene.store.servers[leader].restart().await;
    for name in WORKERS {
        scene.adds(name, 3).await;
    }
    std::fs::write(scene.stop_sign(), "").expect("a file");
    all_end_well(&mut workers).await;
    scene.resource.history().check();
    let judge = scene.judge().await;
    let left = async || judge.list("").await.expect("list");
    until("nothing is left", left, Vec::is_empty).await;
}
