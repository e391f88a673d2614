//! Shared locks.

use std::time::Duration;

use dlock::backend::{Backend, Renewed};

use super::{is_renewed, read, release, scene, take, until, waits, write};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

/// Nobody tells of the writer's death; the renewal of the lease in front of it
/// finds out.
#[tokio::test]
async fn a_dead_writer_does_not_keep_readers_out() {
    let (server, redis) = scene().await;
    let first = read("a");
    take(&redis, &first).await;
    server.run::<u64>(&["RPUSH", "dlock:{a}:queue", "w:1.1:60000:dead.1"]);
    server.run::<()>(&["SET", "dlock:alive:dead.1", "1"]);
    let reader = waits(&server, &redis, &read("a"), 2).await;
    looked_twice(&server).await;
    server.run::<u64>(&["DEL", "dlock:alive:dead.1"]);
    assert!(is_renewed(&redis, &first).await);
    within(HANG, reader).await.unwrap();
}

#[tokio::test]
async fn a_reader_who_died_holds_the_lock_for_its_ttl_only() {
    let (server, redis) = scene().await;
    let (mut dead, mut short) = (read("a"), read("a"));
    dead.ttl = Duration::from_millis(400);
    short.ttl = Duration::from_millis(300);
    take(&redis, &dead).await;
    take(&redis, &short).await;
    let long = read("a");
    take(&redis, &long).await;
    let writer = write("a");
    let waiter = waits(&server, &redis, &writer, 1).await;
    // The longest lease ends first, by being given back.
    release(&redis, &long).await;
    assert!(server.run::<i64>(&["PTTL", "dlock:{a}"]) <= 400);
    assert!(server.run::<i64>(&["PTTL", "dlock:{a}:readers"]) <= 400);
    within(HANG, waiter).await.unwrap();
    release(&redis, &writer).await;

    // Among those who stay, it does not count.
    take(&redis, &dead).await;
    take(&redis, &long).await;
    until("the end of its lease", || async {
        let seen = redis.inspect("a").await.unwrap().expect("held");
        seen.holders.len() == 1
    })
    .await;
    let renewed = redis.renew(&[dead, long.clone()]).await;
    assert!(matches!(
        renewed[..],
        [Ok(Renewed::Gone), Ok(Renewed::Extended { .. })]
    ));
    release(&redis, &long).await;
    assert!(redis.inspect("a").await.unwrap().is_none());
}

/// Nobody is left to take the writer out of the queue: it goes with its end.
#[tokio::test]
async fn a_writer_who_died_behind_readers_leaves_nothing() {
    let (server, redis) = scene().await;
    let (first, last) = (read("a"), read("a"));
    let places = || server.run::<i64>(&["PTTL", "dlock:{a}:queue"]);
    take(&redis, &first).await;
    take(&redis, &last).await;
    server.run::<u64>(&["RPUSH", "dlock:{a}:queue", "w:1.1:60000:dead.1"]);
    server.run::<()>(&["SET", "dlock:alive:dead.1", "1"]);
    // It is looked at and put back.
    assert!(is_renewed(&redis, &last).await);
    assert!(places() > 0, "after a renewal");
    server.run::<()>(&["PERSIST", "dlock:{a}:queue"]);
    release(&redis, &first).await;
    assert!(places() > 0, "after a release beside another reader");
    // Its process does not listen.
    server.run::<()>(&["PERSIST", "dlock:{a}:queue"]);
    release(&redis, &last).await;
    assert!(places() > 0, "after the last release");
}

/// The message that lets a reader in is lost, and readers hold the lock on.
#[tokio::test]
async fn a_reader_let_in_without_a_message_finds_out() {
    let (server, redis) = scene().await;
    take(&redis, &write("a")).await;
    let request = read("a");
    let waiter = waits(&server, &redis, &request, 1).await;
    server.run::<String>(&["LPOP", "dlock:{a}:queue"]);
    let (end, owner) = ("99999999999999", request.owner.to_string());
    server.run::<u64>(&["ZADD", "dlock:{a}:readers", end, &owner, end, "1.1"]);
    server.run::<()>(&["SET", "dlock:{a}", "r:1.1"]);
    within(HANG, waiter).await.unwrap();
}

/// Until the backend has seen what the lock holds, and has no more cause to ask
/// as long as that stays so.
async fn looked_twice(server: &RedisServer) {
    let before = server.calls("mget");
    until("two looks", || async { server.calls("mget") >= before + 2 }).await;
}
