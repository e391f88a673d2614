//! What a lock costs the server; what waiting does: by process, not by waiter; and
//! what a release does: one event, however many wait.

use std::time::{Duration, Instant};

use dlock::LockManager;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::{config, connect, queued};
use crate::support::etcd::{EtcdServer, etcd_url};
use crate::support::wait::{HANG, until, within};

const WAITERS: usize = 1_000;
const IDLE: Duration = Duration::from_secs(5);

/// Requests and messages per second that one process may cost while its waiters
/// wait.
const BOUND: f64 = 2.0;

/// Messages that the server has had from its clients, on streams and else.
async fn messages(server: &EtcdServer) -> u64 {
    server.metric("grpc_server_msg_received_total", "").await
}

async fn waiting_costs_little(keys: usize) {
    let server = EtcdServer::start().await;
    let connect = async || {
        let config = config(&etcd_url(&[server.port()])).request_timeout(HANG);
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
    let queued = async || -> usize {
        let listed = holder.list("key:").await.expect("list");
        listed.iter().map(|lock| lock.waiters).sum()
    };
    until("all wait", queued, |&waiting| waiting == keys).await;
    let in_a_second = async || {
        let before = messages(&server).await;
        sleep(Duration::from_secs(1)).await;
        messages(&server).await - before
    };
    until("all watch", in_a_second, |&cost| cost < 10).await;

    let (start, before) = (Instant::now(), messages(&server).await);
    sleep(IDLE).await;
    let cost = messages(&server).await - before;
    let rate = cost as f64 / start.elapsed().as_secs_f64();
    assert!(
        rate <= BOUND,
        "{rate} messages per second for {WAITERS} waiters"
    );
    assert!(waiting.try_join_next().is_none(), "somebody did not wait");

    drop(guards);
    let all = within(HANG, waiting.join_all()).await;
    all.into_iter()
        .collect::<Result<(), _>>()
        .expect("the locks");
}

/// A free lock is one request to take and one to give back. Its lease is confirmed
/// now and then, for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_section_is_two_requests() {
    const SECTIONS: u64 = 200;
    let server = EtcdServer::start().await;
    let manager = crate::harness::connect(&etcd_url(&[server.port()])).await;
    let sections = async |number: u64| {
        for _ in 0..number {
            manager.lock("key").run(async {}).await.expect("the lock");
        }
        messages(&server).await
    };
    let before = sections(1).await;
    let cost = sections(SECTIONS).await - before;
    assert!(
        cost >= 2 * SECTIONS,
        "{cost} messages for {SECTIONS} sections"
    );
    assert!(
        cost <= 2 * SECTIONS + 20,
        "{cost} messages for {SECTIONS} sections"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_on_one_key() {
    waiting_costs_little(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_on_a_thousand_keys() {
    waiting_costs_little(WAITERS).await;
}

/// Each release wakes the next waiter: the server sends as many events as there
/// are releases, whether ten wait or a hundred. Were all of them woken, it would
/// send thousands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_waiter_of_a_hundred() {
    let server = EtcdServer::start().await;
    let url = etcd_url(&[server.port()]);
    let judge = connect(&url).await;
    let mut events_per_release = Vec::new();
    for waiters in [10, 100] {
        // Each waiter asks the server itself: one process each, as far as that
        // can tell.
        let guard = judge.lock("key").acquire().await.expect("the lock");
        let mut waiting = JoinSet::new();
        for number in 0..waiters {
            let manager = connect(&url).await;
            waiting.spawn(async move { manager.lock("key").run(async {}).await });
            queued(&judge, "key", number + 1).await;
        }
        let events = async || {
            let sent = "grpc_server_msg_sent_total";
            server.metric(sent, "grpc_method=\"Watch\"").await
        };
        // What says that the watches are made.
        let quiet = async || {
            let before = events().await;
            sleep(Duration::from_millis(300)).await;
            events().await - before
        };
        until("all watch", quiet, |&more| more == 0).await;
        let before = events().await;
        guard.release().await.expect("the release");
        let all = within(HANG, waiting.join_all()).await;
        all.into_iter()
            .collect::<Result<(), _>>()
            .expect("the lock");
        until("nothing more comes", quiet, |&more| more == 0).await;
        let releases = waiters as u64 + 1;
        events_per_release.push((events().await - before) as f64 / releases as f64);
    }
    let [few, many] = events_per_release[..] else {
        panic!("two rounds: {events_per_release:?}")
    };
    // An event for the one that was ahead, and the word that its watch has ended;
    // the same for the waiter's own key.
    assert!(many <= 4.5, "{many} events for a release");
    assert!(
        many <= few * 1.5,
        "{few} events for a release of ten, {many} of a hundred"
    );
}
