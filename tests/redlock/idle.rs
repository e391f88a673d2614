//! Waiting costs by process, not by waiter, on every node.

use std::time::{Duration, Instant};

use dlock::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::NODES;
use crate::harness::config;
use crate::support::nodes::Nodes;
use crate::support::wait::{HANG, until, within};

const WAITERS: usize = 1_000;
const IDLE: Duration = Duration::from_secs(10);

/// Commands per second that one process may cost a node while its waiters wait.
const BOUND: f64 = 2.0;

async fn waiting_costs_little(keys: usize) {
    let nodes = Nodes::start(NODES).await;
    // A thousand releases at a time keep the nodes busy for a while.
    let connect = async || {
        let config = config(&nodes.url()).request_timeout(HANG);
        LockManager::connect(config).await.expect("a connection")
    };
    let (holder, other) = (connect().await, connect().await);
    let mut guards = Vec::new();
    for number in 0..keys {
        let guard = holder.lock(format!("key:{number}")).acquire().await;
        guards.push(guard.expect("the lock"));
    }
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        let request = other.lock(format!("key:{}", number % keys));
        waiting.spawn(request.run(async {}));
    }
    let listening = async || -> usize {
        let listed = holder.list("key:").await.expect("list");
        listed.iter().map(|lock| lock.waiters).sum()
    };
    until("all wait", listening, |&waiting| waiting == keys).await;
    let commands = async || -> u64 {
        let mut most = 0;
        for node in nodes.iter() {
            most = most.max(node.commands_so_far().await);
        }
        most
    };
    // Each asks once more when it listens.
    let in_a_second = async || {
        let before = commands().await;
        sleep(Duration::from_secs(1)).await;
        commands().await - before
    };
    until("all have asked", in_a_second, |&cost| cost < 10).await;

    let (start, before) = (Instant::now(), commands().await);
    sleep(IDLE).await;
    let cost = commands().await - before;
    let rate = cost as f64 / start.elapsed().as_secs_f64();
    assert!(
        rate <= BOUND,
        "{rate} commands per second for {WAITERS} waiters"
    );
    assert!(waiting.try_join_next().is_none(), "somebody did not wait");

    drop(guards);
    let all = within(HANG, waiting.join_all()).await;
    all.into_iter()
        .collect::<Result<(), _>>()
        .expect("the locks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_on_one_key() {
    waiting_costs_little(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_on_a_thousand_keys() {
    waiting_costs_little(WAITERS).await;
}
