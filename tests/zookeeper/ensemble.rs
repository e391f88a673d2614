//! Three servers, some of which die, hang, or are cut off from the others.

use std::time::Duration;

use dlock::{Config, LockManager};
use dlock_conformance::processes::{ENDLESS, Scene, Shared, all_end_well};
use dlock_conformance::{Store, async_trait};

use crate::harness::{config, connect, had, healed, is_busy, waited_for};
use crate::support::wait::{HANG, eventually, until, within};
use crate::support::zookeeper::Ensemble;

fn url(ensemble: &Ensemble, session: &str) -> String {
    format!(
        "zookeeper://{}/locks?session_timeout={session}",
        ensemble.hosts()
    )
}

/// Asks for as long as it takes: an election is none of the caller's business.
async fn patient(url: &str) -> LockManager {
    let config = config(url).request_timeout(HANG);
    within(HANG, LockManager::connect(config))
        .await
        .expect("a connection")
}

/// Each in turn: whoever dies, leases and places in the queue stay, and tokens
/// rise.
#[tokio::test]
async fn each_server_killed_in_turn() {
    let mut ensemble = Ensemble::start().await;
    let url = url(&ensemble, "20s");
    let (manager, other) = (patient(&url).await, patient(&url).await);
    let first = ensemble.leader().await;
    // The leader, and then the others, one of which is the leader by then.
    for number in 0..3 {
        let victim = (first + number) % 3;
        let guard = manager.lock("key").acquire().await.expect("the lock");
        let waiting = tokio::spawn(other.lock("key").acquire());
        waited_for(&manager, "key", 1).await;
        ensemble.0[victim].kill();
        within(HANG, healed(&manager)).await;
        assert!(guard.is_held());
        is_busy(manager.lock("key").try_acquire().await);
        let token = guard.token();
        guard.release().await.expect("the release");
        let next = within(HANG, waiting).await.expect("no panic");
        let next = next.expect("the lock");
        assert!(next.token() > token);
        next.release().await.expect("the release");
        ensemble.0[victim].restart().await;
        ensemble.is_whole().await;
    }
}

/// One that stands still is left for another.
#[tokio::test]
async fn each_server_paused_in_turn() {
    let ensemble = Ensemble::start().await;
    let manager = patient(&url(&ensemble, "20s")).await;
    for server in &ensemble.0 {
        let guard = manager.lock("key").acquire().await.expect("the lock");
        server.pause();
        within(HANG, healed(&manager)).await;
        assert!(guard.is_held());
        server.resume();
        guard.release().await.expect("the release");
        ensemble.is_whole().await;
    }
}

/// A server that was cut off from the others goes on answering questions. The
/// holder that is connected to it must not take that for a sign of life: the
/// leader, which hears nothing of its session, gives the lock to the next.
#[tokio::test]
async fn a_server_that_is_cut_off_keeps_nobody_in_his_lease() {
    let (ensemble, cuts) = Ensemble::start_divisible().await;
    let leader = ensemble.leader().await;
    let lonely = (leader + 1) % 3;
    let there = |server: usize, session: &str| {
        let port = ensemble.0[server].port();
        format!("zookeeper://127.0.0.1:{port}/locks?session_timeout={session}")
    };
    let holder = connect(&there(lonely, "2s")).await;
    let other = connect(&there(leader, "20s")).await;
    let guard = holder.lock("key").acquire().await.expect("the lock");
    let waiting = tokio::spawn(other.lock("key").acquire());
    waited_for(&other, "key", 1).await;

    let client = ensemble.0[lonely].client().await;
    cuts.cut_off(lonely, true);
    // It is not aware of it: it answers.
    let nodes = client.list_children("/locks/key").await;
    let next = within(HANG, waiting).await.expect("no panic");
    let next = next.expect("the lock");
    assert_eq!(nodes.expect("an answer").len(), 2);
    assert!(!guard.is_held(), "held by two");
    assert!(next.token() > guard.token());

    cuts.cut_off(lonely, false);
    ensemble.is_whole().await;
    drop(guard);
    next.release().await.expect("the release");
    healed(&holder).await;
    had(&holder, "key").await;
}

/// Without a majority nothing is granted, and that is said.
#[tokio::test]
async fn a_minority_grants_nothing() {
    let mut ensemble = Ensemble::start().await;
    let url = url(&ensemble, "20s");
    let config = config(&url).request_timeout(Duration::from_secs(1));
    let manager = LockManager::connect(config).await.expect("a connection");
    had(&manager, "key").await;
    for server in [0, 1] {
        ensemble.0[server].kill();
    }
    // What was under way when the second died may still be answered.
    eventually("it is unavailable", async || {
        match within(HANG, manager.lock("key").run(async {})).await {
            Err(dlock::LockError::Unavailable { .. }) => Some(()),
            Err(error) => panic!("{error:?}"),
            Ok(()) => None,
        }
    })
    .await;
    ensemble.0[0].restart().await;
    healed(&manager).await;
}

#[async_trait(?Send)]
impl Store for Ensemble {
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
impl Shared for Ensemble {
    fn url(&self) -> String {
        url(self, "40s")
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
    let mut scene = Scene::around(Box::new(Ensemble::start().await));
    let worker = |name| scene.worker("contend", name, 3, ENDLESS, false);
    let mut workers = WORKERS.map(worker);
    scene.others_add("nobody", 30).await;
    let leader = scene.store.leader().await;
    scene.store.0[leader].pause();
    scene.others_add("nobody", 30).await;
    scene.store.0[leader].resume();
    scene.others_add("nobody", 30).await;
    let leader = scene.store.leader().await;
    scene.store.0[leader].kill();
    scene.others_add("nobody", 30).await;
    scene.store.0[leader].restart().await;
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
