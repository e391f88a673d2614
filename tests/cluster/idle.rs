//! What waiting costs: by key, and not by waiter.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::{connect, waited_for};
use crate::support::cluster::{Cluster, Lent};
use crate::support::wait::{HANG, within};

const WAITERS: usize = 500;
const IDLE: Duration = Duration::from_secs(6);

async fn commands_so_far(cluster: &Cluster) -> u64 {
    let mut commands = 0;
    for master in cluster.masters() {
        commands += master.commands_so_far().await;
    }
    commands
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_on_one_key() {
    let lent = Lent::empty().await;
    let cluster = lent.cluster();
    let (holder, other) = (
        connect(&cluster.url("")).await,
        connect(&cluster.url("")).await,
    );
    let guard = holder.lock("key").acquire().await.expect("the lock");
    let mut waiting = JoinSet::new();
    for _ in 0..WAITERS {
        waiting.spawn(other.lock("key").run(async {}));
    }
    waited_for(&holder, "key", 1).await;
    // What the nodes and their replicas say to each other is not ours.
    let quiet = async || {
        let (start, before) = (Instant::now(), commands_so_far(cluster).await);
        sleep(IDLE).await;
        (commands_so_far(cluster).await - before) as f64 / start.elapsed().as_secs_f64()
    };
    let waited = quiet().await;
    drop(guard);
    let all = within(HANG, waiting.join_all()).await;
    all.into_iter()
        .collect::<Result<(), _>>()
        .expect("the locks");
    // The subscription and its heartbeat linger.
    sleep(Duration::from_secs(5)).await;
    let idle = quiet().await;
    let rate = waited - idle;
    assert!(
        rate <= 2.5,
        "{rate} commands per second for {WAITERS} waiters ({waited} - {idle})"
    );
}
