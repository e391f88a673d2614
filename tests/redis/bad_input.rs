//! What is wrong from the start: each case ends in a `LockError` that says the
//! key or setting and what to do, at once or within the request timeout.

use std::error::Error as _;
use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::lock_name;
use crate::support::port::free_port;
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::{HANG, within};

const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// The error of connecting to `url`.
async fn refusal(url: &str) -> LockError {
    let config = match Config::from_url(url) {
        Ok(config) => config.request_timeout(REQUEST_TIMEOUT),
        Err(error) => return error,
    };
    within(HANG, LockManager::connect(config))
        .await
        .expect_err("a URL that cannot work")
}

fn says(error: &LockError, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(
            message.contains(word),
            "{word:?} is missing from: {message}"
        );
    }
}

#[tokio::test]
async fn a_wrong_url_names_the_setting() {
    for url in [
        "",
        "localhost",
        "127.0.0.1:6379",
        "redis:",
        "redis://",
        "redis:///0",
        "redis://host:port/",
        "redis://host:99999/",
        "redis://host/zero",
        "redis://host/-1",
        "redis://host?ttl=3",
        "memory:x",
        "memory://host",
        "://",
        ":",
        "redis//host",
    ] {
        let error = refusal(url).await;
        assert!(
            matches!(error, LockError::Config { .. }),
            "{url}: {error:?}"
        );
        says(&error, &["store URL"]);
    }
}

#[tokio::test]
async fn an_unknown_scheme_lists_the_known_ones() {
    for url in [
        "reddis://host",
        "http://host",
        "REDIS+foo://host",
        "postgresql+x://host",
    ] {
        let error = refusal(url).await;
        assert!(
            matches!(error, LockError::Config { .. }),
            "{url}: {error:?}"
        );
        says(&error, &["store URL", "redis://", "memory:"]);
    }
}

#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn encryption_without_its_feature_says_which() {
    let error = refusal("rediss://127.0.0.1").await;
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    says(&error, &["store URL", "`tls`"]);
}

#[tokio::test]
async fn a_server_that_is_down_is_unavailable() {
    let port = free_port();
    let error = refusal(&format!("redis://127.0.0.1:{port}")).await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(&error, &[&format!("127.0.0.1:{port}")]);
    assert!(error.source().is_some(), "the cause is kept");
}

#[tokio::test]
async fn a_host_that_does_not_exist_is_unavailable() {
    // Reserved for this use: it never resolves.
    let error = refusal("redis://nowhere.invalid:6379").await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(&error, &["nowhere.invalid"]);
}

/// It takes the connection and says nothing.
#[tokio::test]
async fn a_server_that_is_silent_is_unavailable() {
    let server = RedisServer::start().await;
    server.pause();
    let error = refusal(&server.url()).await;
    server.resume();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(&error, &["request timeout"]);
}

/// It takes the connection and speaks another language.
#[tokio::test]
async fn a_server_that_is_no_redis_is_refused() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let port = listener.local_addr().expect("the port").port();
    let greeter = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        loop {
            let Ok((mut client, _)) = listener.accept().await else {
                continue;
            };
            let _ = client.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await;
            // Kept open, as a real one would.
            tokio::spawn(async move {
                tokio::time::sleep(HANG).await;
                drop(client);
            });
        }
    });
    let error = refusal(&format!("redis://127.0.0.1:{port}")).await;
    greeter.abort();
    assert!(
        matches!(
            error,
            LockError::Unavailable { .. } | LockError::Config { .. }
        ),
        "{error:?}"
    );
    says(&error, &[&format!("127.0.0.1:{port}")]);
}

#[tokio::test]
async fn a_wrong_password_is_a_wrong_setting() {
    let server = Setup::default().password("right").start().await;
    let address = format!("127.0.0.1:{}", server.port());
    for login in ["", ":wrong@", "somebody:right@"] {
        let error = refusal(&format!("redis://{login}{address}")).await;
        assert!(
            matches!(error, LockError::Config { .. }),
            "{login}: {error:?}"
        );
        says(&error, &[&address, "password"]);
    }
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config)
        .await
        .expect("the right password");
    manager.lock("key").run(async {}).await.expect("the lock");
}

#[tokio::test]
async fn a_password_may_hold_any_character() {
    let server = Setup::default().password("p@ss:w/rd?#%[ü]").start().await;
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config)
        .await
        .expect("the right password");
    manager.lock("key").run(async {}).await.expect("the lock");
}

#[tokio::test]
async fn a_database_that_is_not_there_is_a_wrong_setting() {
    let server = RedisServer::start().await;
    let error = refusal(&format!("redis://127.0.0.1:{}/999", server.port())).await;
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    says(&error, &["database"]);
}

#[tokio::test]
async fn another_database_keeps_locks_apart() {
    let server = RedisServer::start().await;
    let connect = async |database: u32| {
        let url = format!("redis://127.0.0.1:{}/{database}", server.port());
        let config = Config::from_url(&url).expect("a valid URL");
        LockManager::connect(config).await.expect("a connection")
    };
    let (zero, one) = (connect(0).await, connect(1).await);
    let _guard = zero.lock("key").try_acquire().await.expect("a free lock");
    // Waiting and waking work there, too.
    let guard = one
        .lock("key")
        .try_acquire()
        .await
        .expect("a free lock in the other database");
    let waiting = tokio::spawn({
        let other = connect(1).await;
        async move { other.lock("key").run(async {}).await }
    });
    crate::support::wait::until(
        "the waiter waits",
        async || {
            one.inspect("key")
                .await
                .expect("inspect")
                .map_or(0, |lock| lock.waiters)
        },
        |&waiting| waiting == 1,
    )
    .await;
    guard.release().await.expect("the release");
    within(HANG, waiting)
        .await
        .expect("no panic")
        .expect("the lock");
}

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
    ];
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
            says(&error, &[name]);
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
    drop(guard);
    // One bad key does not spoil the list of the others.
    let _good = manager.lock("good").acquire().await.expect("the lock");
    let listed = manager.list("good").await.expect("list");
    assert_eq!(listed.len(), 1, "{listed:?}");
}

/// A script that fails: the token counter is not a number.
#[tokio::test]
async fn a_script_that_fails_is_told() {
    let server = RedisServer::start().await;
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config.ttl(20 * HANG))
        .await
        .expect("a connection");
    manager.lock("key").run(async {}).await.expect("the lock");
    server.command::<()>(&["SET", "dlock:token", "many"]).await;
    for error in [
        within(HANG, manager.lock("waits").acquire()).await,
        within(HANG, manager.lock("tries").try_acquire()).await,
        within(HANG, manager.lock("reads").read().acquire()).await,
    ] {
        says(&error.expect_err("no token"), &["dlock:token"]);
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
    server
        .command::<()>(&["CONFIG", "SET", "maxmemory", "1"])
        .await;
    let error = within(HANG, manager.lock("key").acquire())
        .await
        .expect_err("no memory");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(&error, &["`key`", "maxmemory"]);
    server
        .command::<()>(&["CONFIG", "SET", "maxmemory", "0"])
        .await;

    // A replica, as after a failover to the wrong side.
    server.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let error = within(HANG, manager.lock("key").acquire())
        .await
        .expect_err("a replica");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(&error, &["`key`", "replica"]);
    server.command::<()>(&["REPLICAOF", "NO", "ONE"]).await;
    within(HANG, manager.lock("key").run(async {}))
        .await
        .expect("the lock");
}

/// A user who may do only what `docs/stores/redis.md` asks for.
#[tokio::test]
async fn a_user_with_the_documented_rights_is_enough() {
    let server = RedisServer::start().await;
    server
        .command::<()>(&[
            "ACL", "SETUSER", "weak", "on", ">secret", "~other:*", "+@all",
        ])
        .await;
    let url = |user: &str| format!("redis://{user}:secret@127.0.0.1:{}", server.port());
    let config = Config::from_url(&url("weak")).expect("a valid URL");
    let error = match within(HANG, LockManager::connect(config)).await {
        Ok(manager) => within(HANG, manager.lock("key").acquire())
            .await
            .map(drop)
            .expect_err("no right to"),
        Err(error) => error,
    };
    says(&error, &["NOPERM", "~dlock:*"]);

    let mut rights = vec!["ACL", "SETUSER", "good", "on", ">secret"];
    rights.extend(["~dlock:*", "&dlock:*", "+config|get", "+time"]);
    rights.extend([
        "+@scripting",
        "+@string",
        "+@list",
        "+@sortedset",
        "+@keyspace",
    ]);
    rights.extend(["+@pubsub", "+@connection"]);
    server.command::<()>(&rights).await;
    let connect = async || {
        let config = Config::from_url(&url("good")).expect("a valid URL");
        LockManager::connect(config).await.expect("a connection")
    };
    let (manager, other) = (connect().await, connect().await);
    let guard = manager.lock("key").acquire().await.expect("the lock");
    assert_eq!(other.list("").await.expect("list").len(), 1);
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.lock("key").read().acquire().await.map(drop) }
    });
    crate::support::wait::until(
        "the waiter waits",
        async || {
            manager
                .inspect("key")
                .await
                .expect("inspect")
                .map_or(0, |lock| lock.waiters)
        },
        |&waiting| waiting == 1,
    )
    .await;
    guard.release().await.expect("the release");
    within(HANG, waiting)
        .await
        .expect("no panic")
        .expect("the lock");
}
