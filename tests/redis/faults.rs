//! The traps of Redis: a server that forgets, messages that get lost, a slow network.

use std::cell::Cell;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::lock_name;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    all_served, config, connect, free, had, held, is_busy, queued, served,
};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, eventually, until};

const TTL: Duration = Duration::from_millis(900);

/// `NOSCRIPT`: the server forgets the scripts between any two commands.
#[tokio::test]
async fn scripts_that_were_flushed_are_sent_again() {
    let server = RedisServer::start().await;
    let url = server.url();
    let (manager, other) = (connect(config(&url)).await, connect(config(&url)).await);
    let flush = async || server.command::<()>(&["SCRIPT", "FLUSH"]).await;
    for _ in 0..3 {
        flush().await;
        let guard = held(manager.lock("key")).await;
        flush().await;
        is_busy(other.lock("key").try_acquire().await);
        flush().await;
        let waiting = tokio::spawn(other.lock("key").run(async {}));
        queued(&manager, "key", 1).await;
        flush().await;
        guard.release().await.expect("the release");
        served(waiting).await;
        flush().await;
        let guard = held(manager.lock("key").read()).await;
        flush().await;
        assert!(manager.inspect("key").await.expect("inspect").is_some());
        flush().await;
        assert_eq!(manager.list("").await.expect("list").len(), 1);
        flush().await;
        drop(guard);
        free(&manager, "key").await;
    }
    // A renewal finds none either.
    unless_it_stands_still(TTL / 4, async || {
        let guard = held(manager.lock("key").ttl(TTL)).await;
        flush().await;
        sleep(2 * TTL).await;
        assert!(guard.is_held());
    })
    .await;
}

/// Nothing happens to the lock meanwhile: who shares it has a long lease, which is not renewed. And
/// nobody has told of the end of the writer at the head of the queue.
#[tokio::test]
async fn a_reader_does_not_wait_for_a_dead_writer() {
    let waits = async || waits_for_no_dead_writer().await;
    unless_it_stands_still(Duration::from_millis(500), waits).await;
}

async fn waits_for_no_dead_writer() {
    let server = RedisServer::start().await;
    let url = server.url();
    let (holder, reader) = (connect(config(&url)).await, connect(config(&url)).await);
    let reads = holder.lock("key").read();
    let guard = held(reads.renew(false).ttl(20 * HANG)).await;
    let words = ["SET", "dlock:alive:abc", "1", "PX", "3000"];
    server.command::<()>(&words).await;
    let queue = format!("{}:queue", lock_name("key"));
    let words = ["RPUSH", &queue, "w:abc.1:30000:abc"];
    server.command::<u32>(&words).await;
    let waiting = tokio::spawn(reader.lock("key").read().acquire());
    let words = ["LLEN", &queue];
    let length = async || server.command::<usize>(&words).await;
    until("it queues behind the writer", length, |&length| length == 2).await;
    let beside = served(waiting).await;
    assert!(guard.is_held() && beside.is_held());
}

/// Only the connections for wake-ups are closed, over and over, as the lock
/// goes from hand to hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_subscriptions_delay_nobody_for_long() {
    let server = RedisServer::start().await;
    let url = server.url();
    let managers = [connect(config(&url)).await, connect(config(&url)).await];
    let done = Cell::new(false);
    let mut players = JoinSet::new();
    for manager in managers.clone() {
        players.spawn(async move {
            for _ in 0..50 {
                let body = sleep(Duration::from_millis(2));
                manager.lock("key").run(body).await?;
            }
            Ok(())
        });
    }
    let killer = async {
        let mut killed = 0_u32;
        while !done.get() {
            let words = ["CLIENT", "KILL", "TYPE", "pubsub"];
            killed += server.command::<u32>(&words).await;
            sleep(Duration::from_millis(20)).await;
        }
        killed
    };
    let play = async {
        all_served(players).await;
        done.set(true);
    };
    let (killed, ()) = tokio::join!(killer, play);
    assert!(killed > 0, "no subscription was closed");
    free(&managers[0], "key").await;
}

/// A slow network: a lease is counted from when its request was sent, not from
/// when the answer came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_ends_here_before_it_ends_in_the_store() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let ttl = Duration::from_secs(2);
    let manager = connect(config(&server.url_through(proxy.port()))).await;
    had(&manager, "key").await;
    proxy.delay(Some(ttl / 8));
    for renewals in [0, 1] {
        let request = manager.lock("key").ttl(ttl);
        let guard = held(match renewals {
            0 => request.renew(false),
            // One renewal falls before it.
            _ => request.max_hold(ttl / 2),
        })
        .await;
        let ended = async || {
            // In this order: the store first, then the holder.
            let there: u32 = server.command(&["EXISTS", &lock_name("key")]).await;
            (there == 0).then(|| !guard.is_held())
        };
        let knew = eventually("the lock expires", ended).await;
        assert!(knew, "its holder believes in a lock that is free");
    }
}

/// Also when it comes between the first connection and its first answers.
#[tokio::test]
async fn a_cut_while_it_starts_is_made_up_for() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    for _ in 0..30 {
        let cuts = async {
            for _ in 0..10 {
                proxy.cut();
                sleep(Duration::from_millis(1)).await;
            }
        };
        let connecting = connect(config(&server.url_through(proxy.port())));
        tokio::join!(connecting, cuts);
    }
}

/// Without memory a lease can still be kept, handed on and given back.
#[tokio::test]
async fn a_full_server_keeps_its_promises() {
    unless_it_stands_still(TTL / 4, full_server_keeps_its_promises).await;
}

async fn full_server_keeps_its_promises() {
    let server = RedisServer::start().await;
    let url = server.url();
    let (holder, other) = (connect(config(&url)).await, connect(config(&url)).await);
    let guard = held(holder.lock("key").ttl(TTL)).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 1).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    sleep(2 * TTL).await;
    guard.release().await.expect("it was renewed");
    let value: String = server.run(&["GET", &lock_name("key")]);
    assert!(value.starts_with("w:"), "it was not handed on: {value}");
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    served(waiting).await.release().await.expect("the release");
}

/// Nor do they depend on the connections of before: it accepts new ones.
#[tokio::test]
async fn a_full_server_accepts_connections() {
    unless_it_stands_still(TTL / 4, full_server_accepts_connections).await;
}

async fn full_server_accepts_connections() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let holder = connect(config(&server.url_through(proxy.port()))).await;
    let guard = held(holder.lock("key").ttl(TTL)).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    proxy.cut();
    sleep(2 * TTL).await;
    assert!(guard.is_held(), "it was not renewed");
    let operator = connect(config(&server.url())).await;
    let lock = operator.inspect("key").await.expect("a look");
    assert!(lock.is_some(), "it is not shown");
    guard.release().await.expect("the release");
}

/// A writer and a reader. They are looked after meanwhile, over the time of several heartbeats.
#[tokio::test]
async fn who_waits_outlasts_a_full_server() {
    let server = RedisServer::start().await;
    let url = server.url();
    let (holder, other) = (connect(config(&url)).await, connect(config(&url)).await);
    let guard = held(holder.lock("key")).await;
    let writer = tokio::spawn(other.lock("key").run(async {}));
    queued(&holder, "key", 1).await;
    let reader = tokio::spawn(other.lock("key").read().run(async {}));
    queued(&holder, "key", 2).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    sleep(Duration::from_secs(9)).await;
    assert!(!writer.is_finished() && !reader.is_finished());
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(guard.is_held());
    guard.release().await.expect("the release");
    served(writer).await;
    served(reader).await;
}

/// Memory can be full for a moment: what the server has to send counts too.
#[tokio::test]
async fn a_moment_without_memory_is_waited_out() {
    let server = RedisServer::start().await;
    let config = config(&server.url()).request_timeout(HANG);
    let manager = connect(config).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let asking = tokio::spawn(manager.lock("key").run(async {}));
    let refused = async || server.run::<String>(&["INFO", "errorstats"]);
    until("it is refused", refused, |told| told.contains("OOM")).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    served(asking).await;
}

/// Somebody else has the lock: whoever was refused at first takes a place.
#[tokio::test]
async fn a_moment_without_replicas_is_waited_out() {
    let server = RedisServer::start().await;
    let config = config(&server.url()).request_timeout(HANG);
    let (holder, other) = (connect(config.clone()).await, connect(config).await);
    let guard = held(holder.lock("key")).await;
    server.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let asking = tokio::spawn(other.lock("key").run(async {}));
    let refused = async || server.run::<String>(&["INFO", "errorstats"]);
    let is_refused = |told: &String| told.contains("NOREPLICAS");
    until("it is refused", refused, is_refused).await;
    server.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    queued(&holder, "key", 1).await;
    guard.release().await.expect("the release");
    served(asking).await;
}

/// A firewall has forgotten the connections, and who waits for an answer has much more
/// time than the leases have.
#[tokio::test]
async fn a_dead_connection_does_not_cost_a_short_lease() {
    let ttl = Duration::from_secs(2);
    unless_it_stands_still(ttl / 8, async || costs_no_lease(ttl).await).await;
}

async fn costs_no_lease(ttl: Duration) {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let config = config(&server.url_through(proxy.port())).request_timeout(10 * HANG);
    let manager = connect(config).await;
    let guard = held(manager.lock("key").ttl(ttl)).await;
    proxy.freeze();
    let lost = tokio::time::timeout(2 * ttl, guard.lost()).await;
    assert!(lost.is_err(), "it was lost");
    let there: u32 = server.command(&["EXISTS", &lock_name("key")]).await;
    assert_eq!(there, 1, "it was not renewed");
}
