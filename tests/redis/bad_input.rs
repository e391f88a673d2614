//! What is wrong from the start: each case ends in a `LockError` that says the
//! key or setting and what to do, at once or within the request timeout.

use std::error::Error as _;
use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::support::port::free_port;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::{HANG, within};

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

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

pub(super) fn says(error: &LockError, words: &[&str]) {
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

/// It closes every connection as soon as it is made.
#[tokio::test]
async fn a_server_that_turns_everybody_away_is_unavailable() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    proxy.refuse(true);
    let error = refusal(&server.url_through(proxy.port())).await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    says(&error, &[&proxy.port().to_string()]);
}

/// For how long it was asked is told, not for how long in the last attempt.
#[tokio::test]
async fn the_time_of_an_attempt_is_not_taken_for_that_of_the_call() {
    let server = RedisServer::start().await;
    let timeout = Duration::from_secs(2);
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config.request_timeout(timeout)).await;
    let manager = manager.expect("a connection");
    manager.lock("key").run(async {}).await.expect("the lock");
    server.pause();
    let error = manager.lock("key").try_acquire().await.map(drop);
    server.resume();
    let error = error.expect_err("an outage");
    says(&error, &["did not answer", "request timeout"]);
    // Less than a second is told in milliseconds.
    let message = error.to_string();
    assert!(!message.contains("ms;"), "{message}");
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

/// Its answer repeats what it was sent, password included.
#[tokio::test]
async fn a_server_without_hello_is_too_old() {
    let server = Setup::default().without(&["HELLO"]).start().await;
    let error = refusal(&format!("redis://:hunter2@127.0.0.1:{}", server.port())).await;
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    says(&error, &["6.2"]);
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        cause = error.source();
    }
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
