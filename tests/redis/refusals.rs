//! A server that answers, and will not do what dlock asks: somebody else's
//! values, no memory, no rights.

use std::net::Ipv4Addr;

use tokio::io::{AsyncWriteExt as _, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::bad_input::REQUEST_TIMEOUT;
use crate::lock_name;
use crate::support::alone::alone_with_its_log;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    config, connect, connecting, had, healed, is_misconfigured, is_unavailable, says,
};
use crate::support::redis::RedisServer;
use crate::support::resp::{command, honest};
use crate::support::wait::{HANG, within};

/// The end of a reader's lease is no time: it is not taken for the counter of tokens.
#[tokio::test]
async fn a_foreign_number_is_named() {
    let server = RedisServer::start().await;
    let manager = connect(config(&server.url())).await;
    let (lock, readers) = (lock_name("key"), format!("{}:readers", lock_name("key")));
    server.command::<()>(&["SET", &lock, "r:1.1"]).await;
    let words = ["ZADD", &readers, "1e300", "hello"];
    server.command::<u32>(&words).await;
    let error = is_misconfigured(within(HANG, manager.lock("key").read().acquire()).await);
    says(&error, &[&readers, "remove it"]);
}

/// Managed servers refuse `CONFIG`, and often evict keys.
#[test]
fn a_server_that_refuses_config_says_that_it_evicts() {
    let name = "refusals::a_server_that_refuses_config_says_that_it_evicts";
    alone_with_its_log(name, async |log| {
        let server = RedisServer::start().await;
        let words = ["ACL", "SETUSER", "default", "-config"];
        for (name, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "volatile-lru")] {
            server.command::<()>(&["CONFIG", "SET", name, value]).await;
        }
        server.command::<()>(&words).await;
        had(&connect(config(&server.url())).await, "key").await;
        let told = log.lines_with("maxmemory-policy volatile-lru");
        let [line] = told.as_slice() else {
            panic!("{told:?}")
        };
        for word in ["WARN", &server.port().to_string(), "noeviction"] {
            assert!(line.contains(word), "{word:?} is missing from: {line}");
        }
    });
}

/// Scripts would round its numbers, so two grants would have the same; at last there is no room for
/// another token.
#[tokio::test]
async fn a_counter_that_is_too_high_is_named() {
    let server = RedisServer::start().await;
    let manager = connect(config(&server.url())).await;
    for last in [
        "9007199254740929",
        "9007199254740992",
        "1152921504606846976",
        "9223372036854775800",
        "9223372036854775807",
    ] {
        let set = async || server.command::<()>(&["SET", "dlock:token", last]).await;
        let lock = || manager.lock("key");
        // Each draws from it, so it is set anew.
        set().await;
        let mut refused = vec![within(HANG, lock().acquire()).await];
        set().await;
        refused.push(within(HANG, lock().read().acquire()).await);
        set().await;
        refused.push(within(HANG, lock().try_acquire()).await);
        for refused in refused {
            let error = is_misconfigured(refused);
            says(&error, &["dlock:token", "remove it"]);
        }
    }
    let error = is_misconfigured(connecting(&server.url(), HANG).await);
    says(&error, &["dlock:token", "remove it"]);
    // It was not taken for a number of our own.
    server.command::<u32>(&["DEL", "dlock:token"]).await;
    had(&manager, "key").await;
}

/// A script that fails: the token counter is not a number.
#[tokio::test]
async fn a_script_that_fails_is_told() {
    let server = RedisServer::start().await;
    let manager = connect(config(&server.url())).await;
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
    let manager = connect(config(&server.url()).request_timeout(REQUEST_TIMEOUT)).await;
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
        // Else it says that nobody answers.
        unless_it_stands_still(REQUEST_TIMEOUT / 4, async || {
            for answer in [
                within(HANG, manager.lock("key").acquire()).await,
                within(HANG, manager.lock("key").try_acquire()).await,
                within(HANG, manager.lock("key").read().acquire()).await,
            ] {
                let error = is_unavailable(answer);
                says(&error, &["`key`", says_why]);
                assert!(error.cause().is_some(), "the cause is kept");
            }
        })
        .await;
        command(unset).await;
        // A busy machine may miss the short request timeout.
        healed(&manager).await;
    }
}

/// Nothing was done, so there is nothing to undo, however long that lasts.
#[tokio::test]
async fn what_is_refused_for_now_leaves_nothing_to_undo() {
    // An answer that comes too late may have been a grant, and is undone again and again.
    unless_it_stands_still(REQUEST_TIMEOUT / 4, async || {
        let server = RedisServer::start().await;
        let manager = connect(config(&server.url()).request_timeout(REQUEST_TIMEOUT)).await;
        had(&manager, "key").await;
        let words = ["CONFIG", "SET", "min-replicas-to-write", "1"];
        server.command::<()>(&words).await;
        for key in ["a", "b", "c", "d", "e"] {
            let lock = manager.lock(key).read();
            let error = is_unavailable(within(HANG, lock.try_acquire()).await);
            says(&error, &["NOREPLICAS"]);
        }
        sleep(REQUEST_TIMEOUT).await;
        let before = server.calls("evalsha");
        sleep(4 * REQUEST_TIMEOUT).await;
        assert_eq!(server.calls("evalsha"), before);
    })
    .await;
}

/// Redis 6.2 looks at its `min-replicas-to-write` before a command, and not within a script: a
/// master of that version that was cut off would grant the lock to one.
#[tokio::test]
async fn who_is_refused_for_want_of_replicas_asks_no_script() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a free port");
    let port = listener.local_addr().expect("its own").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(lacks_replicas(stream));
        }
    });
    let url = format!("redis://127.0.0.1:{port}");
    let manager = connect(config(&url).request_timeout(REQUEST_TIMEOUT)).await;
    unless_it_stands_still(REQUEST_TIMEOUT / 4, async || {
        for answer in [
            within(HANG, manager.lock("key").acquire()).await,
            within(HANG, manager.lock("key").try_acquire()).await,
        ] {
            says(&is_unavailable(answer), &["min-replicas-to-write"]);
        }
    })
    .await;
}

async fn lacks_replicas(stream: TcpStream) {
    let mut stream = BufStream::new(stream);
    while let Some(words) = command(&mut stream).await {
        let said = match words[0].as_str() {
            "SET" | "INCRBY" => b"-NOREPLICAS Not enough good replicas to write.\r\n".to_vec(),
            "EVALSHA" => b":1700000000000064\r\n".to_vec(),
            _ => honest(&words),
        };
        if stream.get_mut().write_all(&said).await.is_err() {
            return;
        }
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
        let error = is_misconfigured(connecting(&url, HANG).await);
        says(&error, &[answer, "~dlock:*", "&dlock:wake:*", "+evalsha"]);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}
