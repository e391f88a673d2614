//! Waiting costs by process, not by waiter; and a release wakes one.

use std::time::{Duration, Instant};

use dlock::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::config;
use crate::support::wait::{HANG, until, within};
use crate::support::zookeeper::{Setup, ZooKeeperServer};

/// Requests per second that one process may cost the server while its waiters
/// wait, its signs of life included.
const BOUND: f64 = 2.0;
const IDLE: Duration = Duration::from_secs(8);

async fn connect(server: &ZooKeeperServer) -> LockManager {
    let url = format!(
        "zookeeper://127.0.0.1:{}?session_timeout=40s",
        server.port()
    );
    let config = config(&url).request_timeout(HANG);
    LockManager::connect(config).await.expect("a connection")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_on_a_thousand_keys() {
    const WAITERS: usize = 1_000;
    let server = Setup::default().start().await;
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let mut guards = Vec::new();
    for number in 0..WAITERS {
        let guard = holder.lock(format!("key:{number}")).acquire().await;
        guards.push(guard.expect("the lock"));
    }
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        waiting.spawn(other.lock(format!("key:{number}")).run(async {}));
    }
    let watches = async || server.number("zk_watch_count");
    until("all wait", watches, |&count| count == Some(WAITERS as u64)).await;

    let requests = || server.number("zk_packets_received").expect("a number");
    let (start, before) = (Instant::now(), requests());
    sleep(IDLE).await;
    let rate = (requests() - before) as f64 / start.elapsed().as_secs_f64();
    // One of the two processes renews a thousand leases meanwhile.
    assert!(rate <= 2.0 * BOUND, "{rate} requests per second");
    assert!(waiting.try_join_next().is_none(), "somebody did not wait");

    drop(guards);
    let all = within(HANG, waiting.join_all()).await;
    all.into_iter()
        .collect::<Result<(), _>>()
        .expect("the locks");
}

/// A hundred processes' worth of waiters on one key: each release fires one
/// watch, and not one for each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_of_a_hundred() {
    const WAITERS: usize = 100;
    let server = Setup::default().start().await;
    let holder = connect(&server).await;
    let guard = holder.lock("key").acquire().await.expect("the lock");
    let mut waiting = JoinSet::new();
    for _ in 0..WAITERS {
        let manager = connect(&server).await;
        waiting.spawn(async move { manager.lock("key").run(async {}).await });
    }
    // A node is there before the watch of whoever made it.
    let watches = async || server.number("zk_watch_count");
    until("all wait", watches, |&count| count == Some(WAITERS as u64)).await;
    let deletions = || {
        server
            .number("zk_cnt_node_deleted_watch_count")
            .expect("a number")
    };
    let fired = || {
        server
            .number("zk_sum_node_deleted_watch_count")
            .expect("a number")
    };
    let before = (deletions(), fired());
    guard.release().await.expect("the release");
    let all = within(HANG, waiting.join_all()).await;
    all.into_iter()
        .collect::<Result<(), _>>()
        .expect("the locks");
    // One for each release but the last, which nobody waited for.
    assert_eq!(fired() - before.1, WAITERS as u64);
    assert!(deletions() - before.0 >= WAITERS as u64);
    assert_eq!(server.number("zk_max_node_deleted_watch_count"), Some(1));
}
