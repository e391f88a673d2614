//! Waiting costs by process, not by waiter, on every node.

use std::time::{Duration, Instant};

use dlock::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::{config, connect, had, waited_for};
use crate::support::nodes::{Nodes, redlock_url};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, until, within};
use crate::{NODES, lock_name};

const WAITERS: usize = 1_000;
const IDLE: Duration = Duration::from_secs(10);

/// Commands per second that one process may cost a node while its waiters wait.
const BOUND: f64 = 2.0;

/// Once all have asked who had to, a node gets few commands.
async fn waiters_are_calm(nodes: &Nodes) {
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
    assert!(rate <= BOUND, "{rate} commands per second while all wait");
}

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
    waiters_are_calm(&nodes).await;
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

/// The lock has the votes of three nodes. Those of the other two are free, and come
/// a little later: who asks has them each time, gives them back, and wakes nobody
/// by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_on_a_bare_majority() {
    let nodes = Nodes::start(NODES).await;
    let proxies: Vec<_> = nodes.iter().map(|node| Proxy::to(node.port())).collect();
    for proxy in &proxies[3..] {
        proxy.delay(Some(Duration::from_millis(5)));
    }
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    let (holder, other) = (
        connect(&nodes.url()).await,
        connect(&redlock_url(&ports)).await,
    );
    // It is connected with all.
    had(&other, "key").await;
    let guard = holder.lock("key").acquire().await.expect("the lock");
    for node in nodes.iter().skip(3) {
        node.command::<u64>(&["DEL", &lock_name("key")]).await;
    }
    let waiting = tokio::spawn(other.lock("key").run(async {}));
    waited_for(&other, "key").await;
    waiters_are_calm(&nodes).await;
    drop(guard);
    let waited = within(HANG, waiting).await.expect("no panic");
    waited.expect("the lock");
}
