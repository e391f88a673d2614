//! Three members, of which one fails.

use std::time::{Duration, Instant};

use dlock::LockManager;
use dlock_conformance::failover::{Failure, Led};
use dlock_conformance::{Store, async_trait, failovers};

use crate::harness::{config, hasty, hasty_config};
use crate::support::calm::{always, unless_it_stands_still};
use crate::support::etcd::{Cluster, etcd_url};
use crate::support::locks::{
    self, given_back, had, healed, held, held_at_last, is_done, is_unavailable, queued, served,
};
use crate::support::wait::{HANG, eventually, within};

/// Longer than an election on a busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);

/// One for each member to begin with, as far as that is to be had: who is asked
/// first is drawn at random.
async fn managers(url: &str) -> Vec<LockManager> {
    let mut all = Vec::new();
    for _ in 0..6 {
        all.push(manager(url).await);
    }
    all
}

async fn manager(url: &str) -> LockManager {
    locks::connect(config(url).request_timeout(REQUEST_TIMEOUT)).await
}

/// A member is paused: it is there, and silent. The watches and streams that
/// went to it say nothing any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_member_paused_in_turn() {
    unless_it_stands_still(PAUSED_TTL / 4, members_are_paused).await;
}

/// Renewals are due while a member is paused.
const PAUSED_TTL: Duration = Duration::from_secs(12);

async fn members_are_paused() {
    let cluster = Cluster::start().await;
    let url = etcd_url(&cluster.ports());
    let managers = managers(&url).await;
    for (member, server) in cluster.servers.iter().enumerate() {
        let mut others: Vec<_> = cluster.ports();
        others.retain(|port| *port != server.port());
        let holder = manager(&etcd_url(&others)).await;
        let mut guards = Vec::new();
        for (number, manager) in managers.iter().enumerate() {
            let request = manager.lock(format!("held:{member}:{number}"));
            let request = request.ttl(PAUSED_TTL);
            guards.push(request.acquire().await.expect("the lock"));
        }
        let guard = held(holder.lock("key")).await;
        let mut all = Vec::new();
        for (number, manager) in managers.iter().enumerate() {
            all.push(tokio::spawn(manager.lock("key").run(async {})));
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
        let all_held = guards.iter().all(|guard| guard.is_held());
        assert!(all_held, "member {member}");
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
    unless_it_stands_still(REQUEST_TIMEOUT / 4, is_cut_off).await;
}

async fn is_cut_off() {
    let mut cluster = Cluster::start().await;
    let url = etcd_url(&cluster.ports());
    let managers = managers(&url).await;
    let guard = held(managers[0].lock("key")).await;
    let waiting = tokio::spawn(managers[1].lock("key").run(async {}));
    queued(&managers[2], "key", 1).await;
    let member = cluster.leader().await;
    cluster.cut_off(member).await;
    for manager in &managers {
        healed(manager).await;
    }
    // Those that come now may ask it first.
    for manager in self::managers(&url).await {
        had(&manager, "other").await;
        let seen = manager.inspect("key").await.expect("inspect");
        assert!(seen.is_some(), "no old news");
    }
    guard.release().await.expect("the release");
    served(waiting).await;
    // It alone is no cluster.
    let port = cluster.servers[member].port();
    let alone = hasty_config(&etcd_url(&[port]));
    is_unavailable(within(HANG, LockManager::connect(alone)).await);
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
    let manager = hasty(&url).await;
    let guard = held_at_last(|| manager.lock("key")).await;
    let ports = cluster.ports();
    for server in &mut cluster.servers[..2] {
        server.kill();
    }
    is_unavailable(within(HANG, manager.lock("other").acquire()).await);
    is_unavailable(within(HANG, manager.lock("other").try_acquire()).await);
    is_unavailable(within(HANG, manager.inspect("key")).await);
    let (first, second) = cluster.servers.split_at_mut(1);
    tokio::join!(first[0].restart(), second[0].restart());
    healed(&manager).await;
    given_back(guard).await;
    assert_eq!(cluster.ports(), ports);
}

/// It begins the time of all leases anew, and so that of a mark: what was done is
/// remembered for longer, and never for less.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_remembers_what_was_done_for_longer() {
    unless_it_stands_still(REQUEST_TIMEOUT / 4, remembers_for_longer).await;
}

async fn remembers_for_longer() {
    const TIME: Duration = Duration::from_secs(600);
    const PASSED: Duration = Duration::from_secs(5);
    let cluster = Cluster::start().await;
    let manager = manager(&etcd_url(&cluster.ports())).await;
    let guard = held(manager.lock("key").once(TIME)).await;
    guard.release_done().await.expect("the release");
    // When it was asked, and answered, how much of its time is left.
    let left = async || {
        let asked = Instant::now();
        let mark = manager.inspect("key").await.ok()??.done?;
        Some((asked, Instant::now(), mark.expires_in?))
    };
    let passed = async || left().await.filter(|(.., left)| *left <= TIME - PASSED);
    let (_, answered, before) = eventually("some of it has passed", passed).await;
    // Where it ends, if nothing happens: not after this.
    let end = answered + before;
    let leader = cluster.leader().await;
    cluster.servers[leader].pause();
    healed(&manager).await;
    let longer = async || left().await.filter(|(asked, _, left)| *asked + *left > end);
    eventually("it ends later", longer).await;
    let again = within(HANG, manager.lock("key").acquire()).await;
    always(again.is_err(), "it is done once more");
    is_done(again);
    cluster.servers[leader].resume();
    assert!(within(HANG, manager.forget("key")).await.expect("forget"));
    had(&manager, "key").await;
}

/// One whose leader fails.
struct Elected {
    cluster: Cluster,
    lost: Option<(usize, Failure)>,
}

#[async_trait(?Send)]
impl Store for Elected {
    async fn start() -> Self {
        Self {
            cluster: Cluster::start().await,
            lost: None,
        }
    }

    fn url(&self) -> String {
        etcd_url(&self.cluster.ports())
    }

    /// Longer than any election: nobody loses a lock here, so nobody may come in
    /// beside another.
    fn contenders_ttl(&self) -> Duration {
        Duration::from_secs(20)
    }
}

#[async_trait(?Send)]
impl Led for Elected {
    async fn lose_leader(&mut self, _: &str, failure: Failure) {
        let leader = self.cluster.leader().await;
        match failure {
            Failure::Hangs => self.cluster.servers[leader].pause(),
            Failure::Dies => self.cluster.servers[leader].kill(),
            other => unreachable!("{other:?} is not among its failures"),
        }
        self.lost = Some((leader, failure));
    }

    async fn leader_is_back(&mut self) {
        match self.lost.take().expect("one that was lost") {
            (lost, Failure::Hangs) => self.cluster.servers[lost].resume(),
            (lost, Failure::Dies) => self.cluster.servers[lost].restart().await,
            (_, other) => unreachable!("{other:?} is not among its failures"),
        }
    }
}

failovers!(crate::cluster::Elected);
