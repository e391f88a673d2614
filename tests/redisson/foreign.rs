//! What somebody else has put where a lock belongs, and what is asked for that Redisson's
//! classes do not have.

use dlock::LockError;

use crate::heard::{JAVA, heard_on, told};
use crate::support::locks::{config, connect, held, is_busy, queued, says, served, shown};
use crate::support::redis::RedisServer;
use crate::url;

const RECIPES: [&str; 4] = ["lock", "read-write", "fenced", "fair"];

/// Nobody waits for it, and it stays as it was.
#[tokio::test]
async fn what_is_no_lock_is_told() {
    let server = RedisServer::start().await;
    for command in [
        "SET text value",
        "SET redisson_unlock_latch:{key}:1 1",
        "RPUSH list value",
        "HSET hash 8743c9c0-0795-4907-87fd-6c719a6b4586:1 1",
        "HSET card name Alice",
    ] {
        let words: Vec<_> = command.split(' ').collect();
        server.command::<redis::Value>(&words).await;
        for recipe in RECIPES {
            let manager = connect(config(&url(&server.url(), recipe))).await;
            let error = manager.lock(words[1]).acquire().await;
            says(&error.expect_err("no lock"), &[words[1], "not write"]);
            let error = manager.inspect(words[1]).await;
            says(&error.expect_err("no lock"), &[words[1], "not write"]);
            let locks = manager.list("").await.expect("a list");
            assert!(locks.is_empty(), "{locks:?}");
        }
        let left: bool = server.command(&["EXISTS", words[1]]).await;
        assert!(left, "{command}");
    }
}

#[tokio::test]
async fn a_token_that_is_none_is_told() {
    let server = RedisServer::start().await;
    let manager = connect(config(&url(&server.url(), "fenced"))).await;
    for command in [
        "SET redisson_lock_token:{key} x",
        "HSET redisson_lock_token:{key} a 1",
    ] {
        let words: Vec<_> = command.split(' ').collect();
        server.command::<()>(&["DEL", words[1]]).await;
        server.command::<redis::Value>(&words).await;
        let error = manager.lock("key").try_acquire().await;
        says(&error.expect_err("no number"), &[words[1], "not write"]);
        // It was not had.
        let is_there: bool = server.command(&["EXISTS", "key"]).await;
        assert!(!is_there, "{command}");
    }
}

/// In Java, a read/write lock takes the hash of an `RLock` for one that is free.
#[tokio::test]
async fn the_holder_of_another_class_is_left_alone() {
    let server = RedisServer::start().await;
    let connect = async |recipe| connect(config(&url(&server.url(), recipe))).await;
    let (lock, read_write) = (connect("lock").await, connect("read-write").await);
    let guard = held(lock.lock("key")).await;
    is_busy(read_write.lock("key").try_acquire().await);
    is_busy(read_write.lock("key").read().try_acquire().await);
    guard.release().await.expect("the release");
    for read in [false, true] {
        let guard = match read {
            true => held(read_write.lock("key").read()).await,
            false => held(read_write.lock("key")).await,
        };
        is_busy(lock.lock("key").try_acquire().await);
        guard.release().await.expect("the release");
    }
}

#[tokio::test]
async fn what_it_does_not_have_is_unsupported() {
    let server = RedisServer::start().await;
    for recipe in RECIPES {
        let manager = connect(config(&url(&server.url(), recipe))).await;
        let error = manager.lock("key").permits(2).try_acquire().await;
        let error = error.expect_err("no permits");
        assert!(matches!(error, LockError::Unsupported { .. }), "{error}");
        says(
            &error,
            &["no permits", "leave `layout=redisson` and `recipe` out"],
        );
        let once = manager.lock("key").once(std::time::Duration::from_secs(60));
        let remembered = once.try_acquire().await.map(drop);
        let forgotten = manager.forget("key").await.map(drop);
        for refused in [remembered, forgotten] {
            let error = refused.expect_err("no marks");
            assert!(matches!(error, LockError::Unsupported { .. }), "{error}");
            says(
                &error,
                &["`once`", "leave `layout=redisson` and `recipe` out"],
            );
        }
        let read = manager.lock("key").read().try_acquire().await;
        if recipe != "read-write" {
            let error = read.expect_err("no readers");
            assert!(matches!(error, LockError::Unsupported { .. }), "{error}");
            says(&error, &["mode \"write\"", "`recipe=read-write`"]);
        } else {
            read.expect("the lock")
                .release()
                .await
                .expect("the release");
        }
    }
}

/// Others may have kept its field in the hash.
#[tokio::test]
async fn a_reader_whose_lease_has_ended_does_not_come_back() {
    let server = RedisServer::start().await;
    let config = || config(&url(&server.url(), "read-write"));
    let manager = connect(config().ttl(std::time::Duration::from_millis(900))).await;
    let other = connect(config()).await;
    let stays = held(other.lock("key").read()).await;
    let guard = held(manager.lock("key").read()).await;
    let keys = server.keys().await;
    let ends_soon = async |key: &String| server.command::<i64>(&["PTTL", key]).await < 1000;
    for key in keys {
        if key.contains("rwlock_timeout") && ends_soon(&key).await {
            server.command::<()>(&["DEL", &key]).await;
        }
    }
    crate::support::wait::within(crate::support::wait::HANG, guard.lost()).await;
    is_busy(other.lock("key").try_acquire().await);
    stays.release().await.expect("the release");
}

/// `key` and `{key}` are two locks with one channel.
#[tokio::test]
async fn who_leaves_does_not_take_the_channel_from_another_lock() {
    let server = RedisServer::start().await;
    let connect = async || connect(config(&url(&server.url(), "lock"))).await;
    let (holder, manager) = (connect().await, connect().await);
    let mut waiting = Vec::new();
    // The last has a channel of its own, by which it is known that all wait.
    for key in ["key", "{key}", "other"] {
        let guard = held(holder.lock(key)).await;
        let waiter = tokio::spawn(manager.lock(key).acquire());
        queued(&holder, key, 1).await;
        waiting.push((guard, waiter));
    }
    for gives_up in [0, 2] {
        waiting[gives_up].1.abort();
    }
    queued(&holder, "other", 0).await;
    assert_eq!(shown(&holder, "{key}").await.waiters, Some(1));
    let (guard, waiter) = waiting.remove(1);
    guard.release().await.expect("the release");
    served(waiter).await.release().await.expect("the release");
}

/// Java's readers have it as often as they ask, each time with an end of its own.
#[tokio::test]
async fn a_reader_that_has_it_several_times_is_broken_at_once() {
    let server = RedisServer::start().await;
    let manager = connect(config(&url(&server.url(), "read-write"))).await;
    let reader = "5ad0c0ba-6d1b-4e1a-8e77-000000000000:31";
    // Its first end is over, or it is not.
    for first in [1, 2] {
        let hash = ["HSET", "key", "mode", "read", reader, "3"];
        server.command::<i64>(&hash).await;
        server.command::<i64>(&["PEXPIRE", "key", "60000"]).await;
        for time in first..=3 {
            let timeout = format!("{{key}}:{reader}:rwlock_timeout:{time}");
            let set = ["SET", &timeout, "1", "PX", "60000"];
            server.command::<()>(&set).await;
        }
        let owner = shown(&manager, "key").await.holders[0].owner.clone();
        let broken = manager.break_holder("key", &owner).await;
        assert!(broken.expect("an answer").is_some(), "{first}");
        assert_eq!(server.keys().await, Vec::<String>::new());
    }
}

/// What is not Redisson's may say any number, and the server does nothing else while it
/// counts.
#[tokio::test]
async fn nobody_counts_as_far_as_a_stranger_says() {
    let server = RedisServer::start().await;
    let manager = connect(config(&url(&server.url(), "read-write"))).await;
    for number in ["1000000000000", "inf", "-1000000000000", "nan"] {
        let guard = held(manager.lock("key").read()).await;
        for field in ["a:1", "b:2"] {
            let words = ["HSET", "key", field, number];
            server.command::<i64>(&words).await;
        }
        shown(&manager, "key").await;
        guard.release().await.expect("the release");
        let left: i64 = server.command(&["DEL", "key"]).await;
        // Who may be there yet is not put out.
        let is_there = !number.starts_with('-');
        assert_eq!(left, i64::from(is_there), "{number}");
    }
}

/// The key in Redis is the namespace and the key, and so it is for a `NameMapper` in Java.
#[tokio::test]
async fn a_namespace_stands_before_the_key() {
    let server = RedisServer::start().await;
    for recipe in RECIPES {
        let url = url(&server.url(), recipe);
        let (shop, all) = (config(&url).namespace("shop"), config(&url));
        let (shop, all) = (connect(shop).await, connect(all).await);
        let guard = held(shop.lock("a%b:1")).await;
        let keys = server.keys().await;
        let lock: Vec<_> = keys.iter().filter(|key| !key.contains('{')).collect();
        assert_eq!(lock, ["shop:a%b:1"], "{keys:?}");
        let is_token = |key: &&String| *key == "redisson_lock_token:{shop:a%b:1}";
        let tokens = keys.iter().filter(is_token).count();
        assert_eq!(
            (keys.len() - tokens, tokens),
            (1, usize::from(recipe == "fenced"))
        );
        is_busy(all.lock("shop:a%b:1").try_acquire().await);
        // Who waits in Java is told by that name.
        let channel = match recipe {
            "read-write" => "redisson_rwlock:{shop:a%b:1}".to_owned(),
            "fair" => {
                let queue = "redisson_lock_queue:{shop:a%b:1}";
                server.command::<()>(&["RPUSH", queue, JAVA]).await;
                let times = "redisson_lock_timeout:{shop:a%b:1}";
                let later = ["ZADD", times, "9999999999999", JAVA];
                server.command::<()>(&later).await;
                format!("redisson_lock__channel:{{shop:a%b:1}}:{JAVA}")
            }
            _ => "redisson_lock__channel:{shop:a%b:1}".to_owned(),
        };
        let mut heard = heard_on(&server, &channel).await;
        guard.release().await.expect("the release");
        told(&mut heard).await;
        server.command::<()>(&["FLUSHALL"]).await;
    }
}
