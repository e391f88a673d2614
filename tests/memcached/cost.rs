//! Waiting costs by process and key, not by waiter: measured from the server's
//! own statistics.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::{connect, had};
use crate::lock_name;
use crate::support::memcached::{MemcachedServer, memcached_url};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, until, within};

const WAITERS: usize = 1_000;
const IDLE: Duration = Duration::from_secs(5);

/// Looks per second that one process may take at one lock: the pauses are a
/// quarter of a second, less a quarter of that.
const BOUND: f64 = 4.0 / 0.75;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_look_as_often_as_one() {
    let server = MemcachedServer::start().await;
    let log = server.log();
    let (holder, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = holder.lock("key").acquire().await.expect("the lock");
    let mut waiting = JoinSet::new();
    for _ in 0..WAITERS {
        let other = other.clone();
        waiting.spawn(async move { other.lock("key").run(async {}).await });
    }
    let waiters = async || log.waiters(&lock_name("key"));
    until("they wait", waiters, |&waiting| waiting == 1).await;
    // The first looks are closer together.
    sleep(Duration::from_secs(1)).await;

    let (start, before) = (Instant::now(), server.stat("cmd_get"));
    sleep(IDLE).await;
    let looks = server.stat("cmd_get") - before;
    let rate = looks as f64 / start.elapsed().as_secs_f64();
    assert!(rate <= BOUND, "{rate} looks per second");
    assert!(looks > 0, "nobody looks");
    assert!(waiting.try_join_next().is_none(), "somebody did not wait");

    guard.release().await.expect("the release");
    let all = within(HANG, waiting.join_all()).await;
    all.into_iter()
        .collect::<Result<(), _>>()
        .expect("the locks");
    // Who waits for nothing looks at nothing.
    let before = server.stat("cmd_get");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(server.stat("cmd_get"), before);
}

/// A waiter who has lost an answer does not know whether it holds the lock
/// itself. The looks tell it, and are no more than anybody else's.
#[tokio::test]
async fn a_lost_answer_makes_waiting_no_dearer() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let (holder, other) = (
        connect(&server.url()).await,
        connect(&memcached_url(proxy.port())).await,
    );
    had(&other, "key").await;
    let guard = holder.lock("key").acquire().await.expect("the lock");
    proxy.cut();
    let log = server.log();
    let waiting = tokio::spawn(other.lock("key").acquire());
    let waiters = async || log.waiters(&lock_name("key"));
    until("it waits", waiters, |&waiting| waiting == 1).await;
    sleep(Duration::from_secs(1)).await;

    let commands = || server.stat("cmd_get") + server.stat("cmd_set");
    let (start, before) = (Instant::now(), commands());
    sleep(IDLE).await;
    let rate = (commands() - before) as f64 / start.elapsed().as_secs_f64();
    assert!(rate <= BOUND, "{rate} commands per second");
    guard.release().await.expect("the release");
    let next = within(HANG, waiting).await.expect("no panic");
    next.expect("the lock")
        .release()
        .await
        .expect("the release");
}
