//! What an operator sees of dlock in Redis, and what its settings change.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use dlock::backend::TokenTier;
use dlock::{Config, LockManager};

use crate::lock_name;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{self, all_served, had, held, queued, served, shown};
use crate::support::redis::{RedisServer, Setup};
use crate::support::runtimes::one_worker;
use crate::support::wait::{HANG, eventually, until, within};

async fn connect(server: &RedisServer) -> LockManager {
    let config = Config::from_url(&server.url()).expect("a valid URL");
    locks::connect(config).await
}

#[tokio::test]
async fn tokens_are_strict_where_redis_keeps_every_write() {
    let plain = RedisServer::start().await;
    let manager = connect(&plain).await;
    assert_eq!(manager.capabilities().tokens, TokenTier::BestEffort);
    let config = Config::from_url(&plain.url()).expect("a valid URL");
    for refused in [
        manager.lock("key").fenced(true).acquire().await.map(drop),
        LockManager::connect(config.fenced(true)).await.map(drop),
    ] {
        let error = refused.expect_err("tokens that may go back").to_string();
        for setting in ["`fenced`", "`appendonly yes`", "`appendfsync always`"] {
            assert!(error.contains(setting), "{error}");
        }
    }

    // On disk, but a second later.
    let mut durable = Setup::default().append_only().start().await;
    let words = ["CONFIG", "SET", "appendfsync", "everysec"];
    durable.command::<()>(&words).await;
    let manager = connect(&durable).await;
    assert_eq!(manager.capabilities().tokens, TokenTier::BestEffort);
    // Nobody may ask.
    let silent = Setup::default().append_only().without(&["CONFIG"]);
    let silent = silent.start().await;
    let manager = connect(&silent).await;
    assert_eq!(manager.capabilities().tokens, TokenTier::BestEffort);

    let words = ["CONFIG", "SET", "appendfsync", "always"];
    durable.command::<()>(&words).await;
    let manager = connect(&durable).await;
    assert_eq!(manager.capabilities().tokens, TokenTier::Strict);
    let mut last = None;
    for _ in 0..3 {
        let guard = held(manager.lock("key").fenced(true)).await;
        let token = guard.token();
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        guard.release().await.expect("the release");
        // What it has confirmed, it has on disk.
        durable.restart().await;
        let healed = async || manager.lock("other").run(async {}).await.ok();
        eventually("the manager serves again", healed).await;
    }
}

/// The counter goes by the server's clock, so that an empty one starts above
/// all that was before.
#[tokio::test]
async fn tokens_rise_also_when_redis_forgets() {
    let mut server = RedisServer::start().await;
    let manager = connect(&server).await;
    let mut last = None;
    for round in 0..8 {
        let token = eventually("the manager serves", async || {
            let guard = manager.lock("key").acquire().await.ok()?;
            let token = guard.token();
            guard.release().await.ok().map(|()| token)
        })
        .await;
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        match round % 4 {
            0 => server.restart().await,
            1 => server.command::<()>(&["FLUSHALL"]).await,
            2 => server.command::<()>(&["DEL", "dlock:token"]).await,
            _ => server.command::<()>(&["SET", "dlock:token", "7"]).await,
        }
    }
}

/// A lock is one key under the documented name, with a ttl; a free one is none.
/// An operator has deleted the lock's own key, and a writer was inside meanwhile. The key that lists
/// the readers was left, and more of them have come.
#[tokio::test]
async fn a_reader_whose_lock_is_gone_is_not_one_of_those_who_come() {
    let server = RedisServer::start().await;
    let (one, other) = (connect(&server).await, connect(&server).await);
    let reader = held(one.lock("key").read().ttl(Duration::from_secs(6))).await;
    let deleted: u32 = server.command(&["DEL", &lock_name("key")]).await;
    assert_eq!(deleted, 1);
    had(&other, "key").await;
    let beside = held(other.lock("key").read()).await;
    within(HANG, reader.lost()).await;
    beside.release().await.expect("it is held");
}

#[tokio::test]
async fn a_lock_is_a_key_with_a_ttl() {
    let server = RedisServer::start().await;
    let manager = connect(&server).await;
    let guard = held(manager.lock("stock:42")).await;
    let ttl: i64 = server.command(&["PTTL", &lock_name("stock:42")]).await;
    assert!((1..=30_000).contains(&ttl), "{ttl}");
    guard.release().await.expect("the release");
    let exists: u32 = server.command(&["EXISTS", &lock_name("stock:42")]).await;
    assert_eq!(exists, 0);
    all_but_the_counter_expire(&server).await;
}

/// Only the counter of all tokens stays for good. Returns the other keys.
async fn all_but_the_counter_expire(server: &RedisServer) -> Vec<String> {
    let mut keys = server.keys().await;
    keys.retain(|key| key != "dlock:token");
    for key in &keys {
        let ttl: i64 = server.command(&["PTTL", key]).await;
        assert!(ttl != -1, "`{key}` never goes");
    }
    keys
}

/// Whoever dies, and whenever: nothing that dlock has in Redis needs anybody to
/// remove it.
#[tokio::test]
async fn all_that_a_lock_needs_expires() {
    let server = RedisServer::start().await;
    let mut managers = Vec::new();
    for _ in 0..3 {
        managers.push(connect(&server).await);
    }
    let mut seen = std::collections::BTreeSet::new();
    for modes in ["wwr", "rrw", "rwr"] {
        let (mut asking, mut had) = (Vec::new(), Vec::new());
        for (index, (manager, mode)) in managers.iter().zip(modes.chars()).enumerate() {
            let request = manager.lock("key");
            let request = if mode == 'r' { request.read() } else { request };
            let mut request = Box::pin(request.acquire());
            // Each in its turn: had, or waiting in the queue.
            let known = async || {
                let lock = managers[0].inspect("key").await.expect("inspect");
                lock.map_or(0, |lock| lock.holders.len() + lock.waiters.unwrap_or(0))
            };
            tokio::select! {
                guard = &mut request => had.push(guard.expect("the lock")),
                _ = until("it is known", known, |&count| count == index + 1) => {}
            }
            asking.push(request);
            seen.extend(all_but_the_counter_expire(&server).await);
        }
        drop((asking, had));
        let left = async || managers[0].inspect("key").await.expect("inspect");
        until("it is free", left, Option::is_none).await;
    }
    // It has looked at what it is about.
    for part in ["", ":queue", ":readers"] {
        let key = format!("{}{part}", lock_name("key"));
        assert!(seen.contains(&key), "{seen:?}");
    }
}

#[tokio::test]
async fn listing_does_not_block_the_server() {
    let server = RedisServer::start().await;
    let manager = connect(&server).await;
    let mut guards = Vec::new();
    for number in 0..300 {
        guards.push(held(manager.lock(format!("key:{number}"))).await);
    }
    assert_eq!(manager.list("key:").await.expect("list").len(), 300);
    assert_eq!(manager.list("key:29").await.expect("list").len(), 11);
    assert!(manager.inspect("key:7").await.expect("inspect").is_some());
    assert_eq!(server.calls("keys"), 0);
}

/// Section 8 of the design: two commands for a lock and its release, beyond
/// what the scripts call inside the server.
#[tokio::test]
async fn a_lock_and_its_release_are_two_round_trips() {
    const ROUNDS: u64 = 100;
    let server = RedisServer::start().await;
    let manager = connect(&server).await;
    had(&manager, "warm").await;
    let trips = async || -> u64 {
        let info: String = server.command(&["INFO", "stats"]).await;
        let mut lines = info.lines();
        let reads = lines.find_map(|line| line.strip_prefix("total_reads_processed:"));
        reads
            .and_then(|reads| reads.trim().parse().ok())
            .expect("a number")
    };
    let before = trips().await;
    for _ in 0..ROUNDS {
        had(&manager, "key").await;
    }
    let took = trips().await - before;
    // The connections of this test read too, a handful of times.
    assert!(took <= 2 * ROUNDS + 20, "{took} reads for {ROUNDS} locks");
}

/// One connection for what waits, however many wait.
#[tokio::test]
async fn waiters_share_a_connection() {
    let server = RedisServer::start().await;
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let mut guards = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 0..100 {
        let key = format!("key:{number}");
        guards.push(held(holder.lock(&key)).await);
        let other = other.clone();
        waiting.spawn(async move { other.lock(key).run(async {}).await });
    }
    let waiters = async || -> usize {
        let listed = holder.list("key:").await.expect("list");
        listed.iter().filter_map(|lock| lock.waiters).sum()
    };
    until("all wait", waiters, |&waiting| waiting == 100).await;
    let clients: String = server.command(&["CLIENT", "LIST"]).await;
    // Two managers, with a connection for calls and one for wake-ups each, and
    // this test's own.
    assert!(clients.lines().count() <= 6, "{clients}");
    let channels: Vec<String> = server.command(&["PUBSUB", "CHANNELS"]).await;
    assert!(channels.len() <= 2, "{channels:?}");

    drop(guards);
    all_served(waiting).await;
}

/// One `init`, many `#[tokio::test]`s: the connection of a runtime that has
/// ended is neither used nor kept.
#[test]
fn every_runtime_has_its_own_connection() {
    let (one, two) = (one_worker(), one_worker());
    let server = one.block_on(RedisServer::start());
    let manager = one.block_on(connect(&server));
    let clients = || {
        let clients: String = server.run(&["CLIENT", "LIST"]);
        clients.lines().count()
    };
    // The manager's, and the one that asks.
    let alone = clients();
    for _ in 0..5 {
        // Taken on one runtime, given back on another.
        let guard = one_worker().block_on(held(manager.lock("key")));
        let released = one_worker().block_on(guard.release());
        released.expect("the release");
    }
    let now = async || clients();
    one.block_on(until("they are closed", now, |&now| now <= alone));
    // Two runtimes at a time, and many first calls on one of them.
    two.block_on(async {
        let mut calls = JoinSet::new();
        for number in 0..20 {
            calls.spawn(manager.lock(format!("key:{number}")).acquire());
        }
        all_served(calls).await;
    });
    one.block_on(had(&manager, "key"));
    assert!(clients() <= alone + 2, "{} after {alone}", clients());
}

/// In the value of a lock and in the list of connections.
#[tokio::test]
async fn who_holds_a_lock_is_seen_by_redis_cli() {
    let server = RedisServer::start().await;
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config.label("orders")).await;
    let manager = manager.expect("a connection");
    let guard = held(manager.lock("key")).await;
    let value: String = server.command(&["GET", &lock_name("key")]).await;
    let process = format!(",{},orders,", std::process::id());
    assert!(value.starts_with("w:") && value.contains('@'), "{value}");
    assert!(value.contains(&process), "{value}");
    let clients: String = server.command(&["CLIENT", "LIST"]).await;
    assert!(clients.contains(" name=orders "), "{clients}");
    // Who had to wait for it was let in by the server, which says when.
    assert!(shown(&manager, "key").await.holders[0].since.is_none());
    let other = connect(&server).await;
    let waiter = tokio::spawn(other.lock("key").acquire());
    queued(&manager, "key", 1).await;
    guard.release().await.expect("the release");
    let guard = served(waiter).await;
    let seen = shown(&manager, "key").await;
    assert!(seen.holders[0].since.is_some());
    let parts = ["", ":queue", ":readers"].map(|part| lock_name("key") + part);
    assert_eq!(seen.stored_as, parts);
    guard.release().await.expect("the release");
}

/// Of one that does not say who it is.
#[tokio::test]
async fn a_holder_of_the_version_before_is_shown() {
    let server = RedisServer::start().await;
    let manager = connect(&server).await;
    let set = [
        "SET",
        &lock_name("key"),
        "w:0123456789abcdef.1",
        "PX",
        "60000",
    ];
    server.command::<()>(&set).await;
    let lock = manager
        .inspect("key")
        .await
        .expect("inspect")
        .expect("a lock");
    assert_eq!(lock.holders[0].owner, "0123456789abcdef.1");
    assert!(lock.holders[0].process.is_none());
}

/// As permits change hands, the lock's value shows who was let in last.
#[tokio::test]
async fn a_permit_is_had_whose_message_was_lost() {
    unless_it_stands_still(Duration::from_millis(500), async || {
        had_without_a_message().await
    })
    .await;
}

async fn had_without_a_message() {
    let server = RedisServer::start().await;
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let permit = |manager: &LockManager| manager.lock("key").permits(2).ttl(HANG);
    let _guards = (held(permit(&holder)).await, held(permit(&holder)).await);
    let mut waiting = JoinSet::new();
    for number in 1..=2 {
        waiting.spawn(permit(&other).acquire());
        queued(&holder, "key", number).await;
    }
    // It is known by then how long the leases last.
    sleep(Duration::from_millis(2_500)).await;
    // The first in the queue is let in, and then another one.
    let [lock, queue, readers] = ["", ":queue", ":readers"].map(|part| lock_name("key") + part);
    let entry: String = server.command(&["LPOP", &queue]).await;
    let owner = entry.strip_prefix("r:").expect("an entry");
    let (owner, _) = owner.rsplit_once(':').expect("its process");
    let (owner, _) = owner.rsplit_once(':').expect("its ttl");
    let [seconds, micros]: [u64; 2] = server.command(&["TIME"]).await;
    let ends = (seconds * 1_000 + micros / 1_000 + 3_000).to_string();
    let unclaimed = format!("{owner}?");
    server
        .command::<()>(&["ZADD", &readers, &ends, &unclaimed])
        .await;
    server
        .command::<()>(&["SET", &lock, "r:abc.1", "KEEPTTL"])
        .await;
    // Nobody else asks for it, and its grant ends after three seconds.
    let had = within(Duration::from_secs(20), waiting.join_next()).await;
    let had = had.expect("a waiter");
    drop(had.expect("no panic").expect("the permit"));
}

#[tokio::test]
async fn a_busy_semaphore_is_not_looked_into_every_second() {
    let server = RedisServer::start().await;
    let (holder, other) = (connect(&server).await, connect(&server).await);
    let _guard = held(holder.lock("key").permits(1).ttl(HANG)).await;
    let waiting = tokio::spawn(other.lock("key").permits(1).run(async {}));
    queued(&holder, "key", 1).await;
    let (before, begun) = (server.calls("evalsha"), Instant::now());
    for number in 0..40 {
        let value = format!("r:abc.{number}");
        let words = ["SET", &lock_name("key"), &value, "KEEPTTL"];
        server.command::<()>(&words).await;
        sleep(Duration::from_millis(200)).await;
    }
    let looks = server.calls("evalsha") - before;
    let seconds = begun.elapsed().as_secs();
    assert!(!waiting.is_finished());
    assert!(
        looks <= seconds / 2 + 2,
        "it was looked into {looks} times in {seconds} seconds"
    );
}
