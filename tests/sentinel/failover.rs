//! The master is replaced while its locks are held and waited for.

use std::time::Duration;

use dlock::LockManager;
use dlock_conformance::failover::{Failure, Led};
use dlock_conformance::{Store, async_trait, failovers};

use crate::support::ghosts::Processes;
use crate::support::locks::{held, served};
use crate::support::redis::RedisServer;
use crate::support::sentinel::{Deployment, replicated};
use crate::support::wait::{HANG, eventually, until, within};

/// Longer than a failover takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(90);

const TTL: Duration = Duration::from_secs(30);

/// A deployment whose master can be replaced.
struct Watchful<const REPLICAS: u32 = 0> {
    deployment: Deployment,
    url: String,
}

impl<const REPLICAS: u32> Watchful<REPLICAS> {
    async fn connect(&self) -> LockManager {
        let config = self.config().request_timeout(PATIENCE);
        LockManager::connect(config).await.expect("a connection")
    }

    fn first(&self) -> &RedisServer {
        &self.deployment.servers[0]
    }
}

#[async_trait(?Send)]
impl<const REPLICAS: u32> Store for Watchful<REPLICAS> {
    async fn start() -> Self {
        let deployment = Deployment::watchful().await;
        let url = deployment.url(&format!("?replicas={REPLICAS}"));
        Self { deployment, url }
    }

    fn url(&self) -> String {
        self.url.clone()
    }
}

#[async_trait(?Send)]
impl<const REPLICAS: u32> Led for Watchful<REPLICAS> {
    fn failures(&self) -> &[Failure] {
        &[Failure::Dies, Failure::Dies]
    }

    fn forgets(&self) -> bool {
        true
    }

    async fn has_told(&self, _: &str) {
        replicated(self.first(), 2).await;
    }

    async fn lose_leader(&mut self, _: &str, _: Failure) {
        self.deployment.fail_over().await;
    }

    async fn leader_is_back(&mut self) {
        self.deployment.revive().await;
    }
}

failovers!(crate::failover::Watchful);

mod on_a_replica_too {
    dlock_conformance::failovers!(crate::failover::Watchful<1>: processes_go_on);
}

/// Whether a server has this lock.
async fn has(server: &RedisServer, key: &str) -> bool {
    let exists: u32 = server
        .command(&["EXISTS", &format!("dlock:{{{key}}}")])
        .await;
    exists == 1
}

/// What was had when a replica had it too is not lost with the master.
#[tokio::test]
async fn a_lease_that_a_replica_has_survives() {
    let mut store = Watchful::<1>::start().await;
    let manager = store.connect().await;
    let mut guards = Vec::new();
    for number in 0..20 {
        // Longer than a failover takes: it is not renewed meanwhile.
        let lock = manager.lock(format!("key:{number}")).ttl(HANG);
        guards.push(lock.acquire().await.expect("the lock"));
    }
    let master = store.deployment.fail_over().await;
    let master = store.deployment.server(master);
    for number in 0..20 {
        let there = has(master, &format!("key:{number}")).await;
        assert!(there, "{number} is lost");
    }
    for guard in guards {
        within(HANG, guard.release()).await.expect("the release");
    }
}

/// A master that was replaced and does not know it, since its sentinels do not
/// reach it: those who are connected to it do not go on with it.
#[tokio::test]
async fn a_master_that_does_not_know_is_left() {
    let store = Watchful::<0>::start().await;
    let (manager, other) = (store.connect().await, store.connect().await);
    let guard = held(manager.lock("held").ttl(TTL)).await;
    let waiting = tokio::spawn(other.lock("held").acquire());
    // It will not do what sentinels tell one that was replaced.
    let old = store.first();
    let refused = ["-slaveof", "-replicaof", "-client|kill"];
    let words = [&["ACL", "SETUSER", "default"][..], &refused].concat();
    old.command::<()>(&words).await;
    let master = store.deployment.replace(old.port()).await;
    let role: Vec<redis::Value> = old.command(&["ROLE"]).await;
    let master_still = redis::Value::BulkString(b"master".into());
    assert_eq!(role[0], master_still, "the test's own premise");

    for manager in [&manager, &other] {
        eventually("it locks at the new master", async || {
            let guard = manager.lock("new").acquire().await.ok()?;
            let there = has(master, "new").await;
            guard.release().await.ok()?;
            there.then_some(())
        })
        .await;
    }
    // The lock had gone along, or its holder hears that it is lost.
    within(HANG, guard.release()).await.ok();
    drop(served(waiting).await);
    let words = ["PUBSUB", "CHANNELS", "dlock:*"];
    let listened = async || old.command::<Vec<String>>(&words).await;
    until("nobody listens to the old one", listened, Vec::is_empty).await;
}

/// Some of the last tokens did not reach the new master, whose clock is behind:
/// whoever has seen them is given greater ones.
#[tokio::test]
async fn tokens_rise_for_those_who_have_seen_the_last() {
    let mut store = Watchful::<0>::start().await;
    let manager = store.connect().await;
    let before = held(manager.lock("key")).await;
    // As a clock that is an hour ahead would have made it.
    let ahead = u64::from(before.token()) + 3_600_000_000;
    let words = ["SET", "dlock:token", &ahead.to_string()];
    store.first().command::<()>(&words).await;
    before.release().await.expect("the release");
    let before = held(manager.lock("key")).await;
    assert!(u64::from(before.token()) > ahead);
    let token = before.token();
    before.release().await.expect("the release");
    // The replicas never hear of it.
    for replica in &store.deployment.servers[1..] {
        let words = ["CONFIG", "SET", "replica-read-only", "no"];
        replica.command::<()>(&words).await;
        replica.command::<()>(&["SET", "dlock:token", "1"]).await;
    }
    store.deployment.fail_over().await;
    let after = held(manager.lock("key")).await;
    assert!(after.token() > token, "{} after {token}", after.token());
}

/// The old master goes on for a moment without its replicas, and serves a whole
/// queue: in that of the new master they are not waited for once more.
#[tokio::test]
async fn who_was_served_long_ago_is_not_waited_for() {
    let mut store = Watchful::<0>::start().await;
    let backend = || {
        let store = dlock::backend::redis::Redis::from_url(&store.url);
        store.expect("a URL").request_timeout(PATIENCE)
    };
    let processes = Processes::start([backend(), backend()]).await;
    let cut_off = async |deployment: &mut Deployment| {
        let [master, replicas @ ..] = &deployment.servers[..] else {
            panic!("three servers");
        };
        replicated(master, replicas.len()).await;
        let replicas: Vec<_> = replicas.iter().collect();
        master.loses(&replicas).await;
    };
    let fail_over = async |deployment: &mut Deployment| {
        deployment.fail_over().await;
    };
    let deployment = &mut store.deployment;
    let ended = processes.outlive_their_ghosts("key", deployment, cut_off, fail_over);
    ended.await;
}
