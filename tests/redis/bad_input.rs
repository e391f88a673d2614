//! What is wrong from the start: each case ends in a `LockError` that says the
//! key or setting and what to do, at once or within the request timeout.

use std::time::Duration;

use crate::support::locks::{
    config, connect, connecting, had, is_unavailable, queued, says, served,
};
use crate::support::redis::{RedisServer, Setup};
use crate::support::secure::misconfigured;

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

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
        misconfigured(url, &["store URL"]).await;
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
        misconfigured(url, &["store URL", "redis://", "memory:"]).await;
    }
}

#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn encryption_without_its_feature_says_which() {
    misconfigured("rediss://127.0.0.1", &["store URL", "`tls`"]).await;
}

#[tokio::test]
async fn a_host_that_does_not_exist_is_unavailable() {
    // Reserved for this use: it never resolves.
    let connected = connecting("redis://nowhere.invalid:6379", REQUEST_TIMEOUT).await;
    says(&is_unavailable(connected), &["nowhere.invalid"]);
}

/// For how long it was asked is told, not for how long in the last attempt.
#[tokio::test]
async fn the_time_of_an_attempt_is_not_taken_for_that_of_the_call() {
    let server = RedisServer::start().await;
    let timeout = Duration::from_secs(2);
    let manager = connect(config(&server.url()).request_timeout(timeout)).await;
    had(&manager, "key").await;
    server.pause();
    let answer = manager.lock("key").try_acquire().await;
    server.resume();
    let error = is_unavailable(answer);
    says(&error, &["did not answer", "request timeout"]);
    // Less than a second is told in milliseconds.
    let message = error.to_string();
    assert!(!message.contains("ms;"), "{message}");
}

#[tokio::test]
async fn a_wrong_password_is_a_wrong_setting() {
    let server = Setup::default().password("right").start().await;
    let address = format!("127.0.0.1:{}", server.port());
    for login in ["", ":wrong@", "somebody:right@"] {
        let url = format!("redis://{login}{address}");
        misconfigured(&url, &[&address, "password"]).await;
    }
    had(&connect(config(&server.url())).await, "key").await;
}

#[tokio::test]
async fn a_password_may_hold_any_character() {
    let server = Setup::default().password("p@ss:w/rd?#%[ü]").start().await;
    had(&connect(config(&server.url())).await, "key").await;
}

#[tokio::test]
async fn a_database_that_is_not_there_is_a_wrong_setting() {
    let server = RedisServer::start().await;
    let url = format!("redis://127.0.0.1:{}/999", server.port());
    misconfigured(&url, &["database"]).await;
}

/// Its answer repeats what it was sent, password included.
#[tokio::test]
async fn a_server_without_hello_is_too_old() {
    let server = Setup::default().without(&["HELLO"]).start().await;
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    misconfigured(&url, &["6.2"]).await;
}

#[tokio::test]
async fn another_database_keeps_locks_apart() {
    let server = RedisServer::start().await;
    let at = async |database: u32| {
        let url = format!("redis://127.0.0.1:{}/{database}", server.port());
        connect(config(&url)).await
    };
    let (zero, one, other) = (at(0).await, at(1).await, at(1).await);
    let _guard = zero.lock("key").try_acquire().await.expect("a free lock");
    // Waiting and waking work there, too.
    let guard = one.lock("key").try_acquire().await;
    let guard = guard.expect("a free lock in the other database");
    let waiting = tokio::spawn(other.lock("key").run(async {}));
    queued(&one, "key", 1).await;
    guard.release().await.expect("the release");
    served(waiting).await;
}
