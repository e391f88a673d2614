//! Waiting costs by process, not by waiter: measured from the server's own
//! command statistics.

use std::time::{Duration, Instant};

use dlock::{Config, LockManager};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, until, within};

const WAITERS: usize = 1_000;
const IDLE: Duration = Duration::from_secs(10);

/// Commands per second that one process may cost while its waiters wait.
const BOUND: f64 = 2.0;

async fn connect(server: &RedisServer) -> LockManager {
    // No renewal falls into the time that is measured.
    let config = Config::from_url(&server.url())
        .expect("a valid URL")
        .ttl(20 * HANG);
    LockManager::connect(config).await.expect("a connection")
}

async fn waiting_costs_little(keys: usize) {
    let server = RedisServer::start().await;
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let mut guards = Vec::new();
    for number in 0..keys {
        guards.push(
            holder
                .lock(format!("key:{number}"))
                .acquire()
                .await
                .expect("the lock"),
        );
    }
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        let other = other.clone();
        waiting.spawn(async move {
            other
                .lock(format!("key:{}", number % keys))
                .run(async {})
                .await
        });
    }
    let in_queues = async || -> usize {
        let listed = holder.list("key:").await.expect("list");
        listed.iter().map(|lock| lock.waiters).sum()
    };
    // The waiters of one key in one process have one place in the queue.
    until("all wait", in_queues, |&waiting| waiting == keys).await;

    let (start, before) = (Instant::now(), server.commands_so_far().await);
    sleep(IDLE).await;
    let cost = server.commands_so_far().await - before;
    let rate = cost as f64 / start.elapsed().as_secs_f64();
    // The process that holds the locks costs nothing meanwhile.
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
