//! What a section costs. Waiting costs by process, not by waiter; and a release
//! wakes one.

use std::cell::Cell;
use std::time::{Duration, Instant};

use dlock::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::{config, had};
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

/// Its node is made, the folder listed behind it, and the node deleted. Who waits
/// watches the one before, and then lists once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_section_is_three_requests_and_five_behind_another() {
    const SECTIONS: u64 = 30;
    /// Signs of life, and looks at what is waited for.
    const BESIDES: u64 = 20;
    let server = Setup::default().start().await;
    let (manager, other) = (connect(&server).await, connect(&server).await);
    // From here on there is a folder.
    had(&manager, "key").await;
    let asked = Cell::new(0);
    let number = |name| {
        asked.set(asked.get() + 1);
        server.number(name).expect("a number")
    };
    let requests = || number("zk_packets_received") - asked.get();
    let transactions = server.transactions();
    let before = requests();
    for _ in 0..SECTIONS {
        had(&manager, "key").await;
    }
    let alone = requests() - before;
    assert!(alone <= 3 * SECTIONS + BESIDES, "{alone} requests");

    let before = requests();
    for _ in 0..SECTIONS {
        let guard = manager.lock("key").acquire().await.expect("the lock");
        let next = tokio::spawn(other.lock("key").run(async {}));
        let watches = async || number("zk_watch_count");
        until("it waits", watches, |&count| count == 1).await;
        guard.release().await.expect("the release");
        let next = within(HANG, next).await.expect("no panic");
        next.expect("the lock");
    }
    let in_turn = requests() - before;
    assert!(
        in_turn <= (3 + 5) * SECTIONS + BESIDES,
        "{in_turn} requests"
    );
    let writes = server.transactions() - transactions;
    assert_eq!(writes, 2 * 3 * SECTIONS, "one to take and one to give");
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
