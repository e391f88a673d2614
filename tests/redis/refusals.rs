//! A server that answers, and will not do what dlock asks: somebody else's
//! values, no memory, no rights.

use std::error::Error as _;

use dlock::{Config, LockError, LockManager};

use crate::bad_input::REQUEST_TIMEOUT;
use crate::lock_name;
use crate::support::locks::{had, held, is_misconfigured, is_unavailable};
use crate::support::locks::{healed, says};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

/// Somebody else's value under a lock's name: told, and left alone.
#[tokio::test]
async fn a_foreign_value_is_refused_and_kept() {
    let server = RedisServer::start().await;
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config).await.expect("a connection");
    let queue = format!("{}:queue", lock_name("queue"));
    let cases = [
        ("text", lock_name("text"), vec!["SET", "hello"]),
        ("number", lock_name("number"), vec!["SET", "42"]),
        ("hash", lock_name("hash"), vec!["HSET", "field", "value"]),
        ("list", lock_name("list"), vec!["RPUSH", "value"]),
        ("set", lock_name("set"), vec!["SADD", "value"]),
        (
            "readers",
            format!("{}:readers", lock_name("readers")),
            vec!["RPUSH", "value"],
        ),
    ];
    let words = ["SET", &lock_name("readers"), "r:1.1"];
    server.command::<()>(&words).await;
    for (key, name, command) in &cases {
        let mut words = vec![command[0], name];
        words.extend(&command[1..]);
        server.command::<redis::Value>(&words).await;
        let before: Vec<u8> = server.command(&["DUMP", name]).await;
        for error in [
            within(HANG, manager.lock(*key).acquire()).await.map(drop),
            within(HANG, manager.lock(*key).try_acquire())
                .await
                .map(drop),
            within(HANG, manager.lock(*key).read().acquire())
                .await
                .map(drop),
            within(HANG, manager.inspect(*key)).await.map(drop),
        ] {
            let error = error.expect_err("a foreign value");
            assert!(!matches!(error, LockError::Busy { .. }), "{key}: {error:?}");
            says(&error, &[name, "remove it"]);
        }
        let after: Vec<u8> = server.command(&["DUMP", name]).await;
        assert_eq!(before, after, "{key}");
    }
    // In the queue, it shows when somebody has to wait.
    server
        .command::<redis::Value>(&["SET", &queue, "hello"])
        .await;
    let guard = manager.lock("queue").acquire().await;
    if let Ok(_guard) = &guard {
        let config = Config::from_url(&server.url()).expect("a valid URL");
        let other = LockManager::connect(config).await.expect("a connection");
        let error = within(HANG, other.lock("queue").acquire())
            .await
            .expect_err("a foreign queue");
        says(&error, &[&queue]);
    }
    // What is no lock does not spoil the list of the others.
    let _good = held(manager.lock("good")).await;
    let listed = manager.list("").await.expect("list");
    let mut listed = listed.iter().map(|lock| lock.key.as_str());
    assert!(listed.clone().any(|key| key == "good"), "{listed:?}");
    assert!(!listed.any(|key| key != "good"), "a foreign one");
    drop(guard);
}

/// A script that fails: the token counter is not a number.
#[tokio::test]
async fn a_script_that_fails_is_told() {
    let server = RedisServer::start().await;
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config.ttl(20 * HANG))
        .await
        .expect("a connection");
    had(&manager, "key").await;
    for value in ["many", "1.5"] {
        server.command::<()>(&["SET", "dlock:token", value]).await;
        for error in [
            within(HANG, manager.lock("waits").acquire()).await,
            within(HANG, manager.lock("tries").try_acquire()).await,
            within(HANG, manager.lock("reads").read().acquire()).await,
        ] {
            says(&error.expect_err("no token"), &["dlock:token"]);
        }
    }
    // A lock whose token was not had is not left behind.
    server.command::<u32>(&["DEL", "dlock:token"]).await;
    for key in ["waits", "tries", "reads"] {
        let run = manager.lock(key).run(async {});
        within(HANG, run).await.expect("the lock");
    }
}

/// The server refuses to write.
#[tokio::test]
async fn a_server_that_cannot_write_is_unavailable() {
    let server = RedisServer::start().await;
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config.request_timeout(REQUEST_TIMEOUT))
        .await
        .expect("a connection");
    for (set, unset, says_why) in [
        (
            "CONFIG SET maxmemory 1",
            "CONFIG SET maxmemory 0",
            "maxmemory",
        ),
        // As after a failover to the wrong side.
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "replica"),
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            "NOREPLICAS",
        ),
    ] {
        let command = async |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            server.command::<()>(&words).await;
        };
        command(set).await;
        for answer in [
            within(HANG, manager.lock("key").acquire()).await,
            within(HANG, manager.lock("key").try_acquire()).await,
            within(HANG, manager.lock("key").read().acquire()).await,
        ] {
            let error = is_unavailable(answer);
            says(&error, &["`key`", says_why]);
            assert!(error.source().is_some(), "the cause is kept");
        }
        command(unset).await;
        // A busy machine may miss the short request timeout.
        healed(&manager).await;
    }
}

/// What a user needs is said when it is missing; see `acl.rs` for the rest.
#[tokio::test]
async fn a_user_without_the_rights_is_told_which() {
    let server = RedisServer::start().await;
    for (user, rules, answer) in [
        ("blind", "~other:* +@all", "NOPERM"),
        ("mute", "~dlock:* resetchannels +@all", "NOPERM"),
        (
            "idle",
            "~dlock:* &* -@all +hello +subscribe +eval",
            "can't run this command",
        ),
    ] {
        let mut words = vec!["ACL", "SETUSER", user, "on", ">hunter2"];
        words.extend(rules.split(' '));
        server.command::<()>(&words).await;
        let url = format!("redis://{user}:hunter2@127.0.0.1:{}", server.port());
        let config = Config::from_url(&url).expect("a valid URL");
        let connected = within(HANG, LockManager::connect(config)).await;
        let error = is_misconfigured(connected);
        says(&error, &[answer, "~dlock:*", "&dlock:wake:*", "+evalsha"]);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}
