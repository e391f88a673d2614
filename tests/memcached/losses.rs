//! A cache forgets: what becomes of locks then.

use std::time::Duration;

use tokio::time::Instant;

use crate::harness::{config, connect, holder};
use crate::support::alone::alone_with_its_log;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{self, free, had, healed, held, is_busy, is_lost, is_unavailable};
use crate::support::memcached::MemcachedServer;
use crate::support::polls::drive_until;
use crate::support::wait::{HANG, until, within};
use crate::{TTL, lock_name};

/// A server that restarts has no locks: who waits gets one, and who held it
/// hears of that at its next renewal.
#[tokio::test]
async fn a_restart_frees_what_is_held() {
    unless_it_stands_still(TTL / 4, freed_by_a_restart).await;
}

async fn freed_by_a_restart() {
    let mut server = MemcachedServer::start().await;
    let (first, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = held(first.lock("key").ttl(TTL)).await;
    let log = server.log();
    let mut waiting = tokio::spawn(other.lock("key").acquire());
    let waiters = async || log.waiters(&lock_name("key"));
    let waits = async {
        until("it waits", waiters, |&waiting| waiting == 1).await;
    };
    drive_until(&mut waiting, waits).await;
    drop(log);

    server.restart().await;
    // An outage is told as one to who waits for the lock.
    let next = match within(HANG, waiting).await.expect("no panic") {
        Ok(next) => next,
        told => {
            is_unavailable(told);
            healed(&other).await;
            held(other.lock("key")).await
        }
    };
    within(HANG, guard.lost()).await;
    is_lost(guard.release().await);
    assert!(next.is_held());
    next.release().await.expect("the release");
    free(&first, "key").await;
}

/// The server numbers its items from 1 after each start. The one who held the
/// lock before knows the very number that the next one's item has now.
#[tokio::test]
async fn a_number_from_before_a_restart_touches_nobodys_lock() {
    // One of the locks is renewed after a third of its time, and has another number then.
    unless_it_stands_still(TTL / 12, numbers_begin_again).await;
}

async fn numbers_begin_again() {
    let mut server = MemcachedServer::start().await;
    let before = connect(&server.url()).await;
    // It is not renewed within the test: the release finds what is there.
    let lost = held(before.lock("key")).await;
    let renewed = held(before.lock("renewed").ttl(TTL)).await;
    let numbers = |server: &MemcachedServer| {
        ["key", "renewed"].map(|key| {
            let answer = server.ask(&format!("gets {}", lock_name(key)), &["END"]);
            answer[0].rsplit(' ').next().map(str::to_owned)
        })
    };
    let known = numbers(&server);

    server.restart().await;
    let after = connect(&server.url()).await;
    let next = held(after.lock("key")).await;
    let other = held(after.lock("renewed")).await;
    assert_eq!(numbers(&server), known, "the test shows nothing");

    let owners = [holder(&after, "key").await, holder(&after, "renewed").await];
    // The one who held it before hears that it did not hold it to the end.
    is_lost(lost.release().await);
    within(HANG, renewed.lost()).await;
    let _ = renewed.release().await;
    let now = [holder(&after, "key").await, holder(&after, "renewed").await];
    assert_eq!(now, owners);
    next.release().await.expect("its own lease");
    other.release().await.expect("its own lease");
}

/// What the server has of a lock: its owner, and since when.
fn value_of(server: &MemcachedServer, key: &str) -> String {
    let answer = server.ask(&format!("get {}", lock_name(key)), &["END"]);
    answer[1].clone()
}

/// Fills the server with items whose names are as long as a lock's and whose values are of
/// this size, which is that of a lock's, as the space is shared with those. It throws out what nobody has looked at for longest.
fn fill_until(server: &MemcachedServer, size: usize, enough: impl Fn() -> bool) {
    let mut number = 0;
    let name = lock_name("key").len();
    while !enough() {
        let mut sets = String::new();
        for _ in 0..5_000 {
            number += 1;
            sets += &format!("set {number:0name$} 0 0 {size} noreply\r\n{number:0size$}\r\n");
        }
        assert_eq!(server.talk(sets.as_bytes()), b"");
        assert!(number < 1_000_000, "nothing is thrown out");
    }
}

/// Thrown out while it is held, a lock is free: the next one comes in, the one
/// before hears of it at its renewal.
#[tokio::test]
async fn an_evicted_lock_is_lost() {
    let server = MemcachedServer::start_with(&["-m", "2"]).await;
    let (first, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = held(first.lock("key").ttl(TTL * 4)).await;
    is_busy(other.lock("key").try_acquire().await);
    let value = value_of(&server, "key");
    fill_until(&server, value.len(), || {
        !server.items().contains("dlock%3Akey")
    });
    let next = held(other.lock("key")).await;
    within(HANG, guard.lost()).await;
    assert!(!guard.is_held() && next.is_held());
    next.release().await.expect("the release");
}

/// A server that may throw out nothing deletes what it has no memory to extend,
/// whoever has it. The holder hears of that at once, and does not ask again: the
/// next one's lock would go the same way.
#[tokio::test]
async fn a_renewal_without_memory_touches_nobody_elses_lock() {
    unless_it_stands_still(TTL / 4, renewed_without_memory).await;
}

async fn renewed_without_memory() {
    let server = MemcachedServer::start_with(&["-M", "-m", "2"]).await;
    let manager = connect(&server.url()).await;
    let guard = held(manager.lock("key").ttl(TTL)).await;
    let store = |line: &str| server.ask(line, &["STORED", "NOT_STORED", "SERVER_ERROR"]);
    let value = value_of(&server, "key");
    let size = value.len();
    fill_until(&server, size, || {
        let probe = "p".repeat(lock_name("key").len());
        let probe = store(&format!("add {probe} 0 0 {size}\r\n{value}"));
        probe[0].starts_with("SERVER_ERROR")
    });
    let name = lock_name("key");
    let gone = async || server.ask(&format!("get {name}"), &["END"]).len() == 1;
    until("it is deleted", gone, |&gone| gone).await;
    // Another owner of the same size.
    let next = "f".repeat(16) + &value[16..];
    let stored = store(&format!("add {name} 0 600 {size}\r\n{next}"));
    assert_eq!(stored, ["STORED"]);
    within(HANG, guard.lost()).await;
    // Behind the owner stands since when.
    let (owner, _) = next.split_once(';').expect("a lock's value");
    assert_eq!(holder(&manager, "key").await.as_deref(), Some(owner));
}

/// A server that throws out what it has no room for may throw out a lock.
#[test]
fn a_server_that_evicts_is_warned_of() {
    let name = "losses::a_server_that_evicts_is_warned_of";
    alone_with_its_log(name, async |log| {
        let server = MemcachedServer::start_with(&["-m", "2"]).await;
        connect(&server.url()).await;
        assert!(!log.text().contains("thrown out"), "{}", log.text());
        fill_until(&server, 64, || server.stat("evictions") > 0);
        connect(&server.url()).await;
        for word in ["WARN", "thrown out", "a server of its own"] {
            assert!(log.text().contains(word), "{word}: {}", log.text());
        }
    });
}

/// What whole seconds and a clock that ticks once in a second take from a
/// lease, the store gives: however the grant falls into the second.
#[tokio::test]
async fn no_lease_ends_early() {
    const LEASES: usize = 20;
    let server = MemcachedServer::start().await;
    let manager = locks::connect(config(&server.url()).ttl(TTL)).await;
    let mut sent = Vec::new();
    for number in 0..LEASES {
        let before = Instant::now();
        let lock = manager.lock(format!("key:{number}")).renew(false);
        std::mem::forget(held(lock).await);
        sent.push(before);
        tokio::time::sleep(Duration::from_millis(53)).await;
    }
    let judge = connect(&server.url()).await;
    let mut left: Vec<usize> = (0..LEASES).collect();
    while !left.is_empty() {
        let mut ended = Vec::new();
        for &number in &left {
            let lock = judge.inspect(format!("key:{number}")).await;
            if lock.expect("inspect").is_none() {
                let lasted = sent[number].elapsed();
                assert!(lasted >= TTL, "{number} lasted {lasted:?}");
                assert!(lasted < TTL + HANG, "{number} lasted {lasted:?}");
                ended.push(number);
            }
        }
        left.retain(|number| !ended.contains(number));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    had(&judge, "key:0").await;
}
