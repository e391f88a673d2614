//! What is wrong from the start: each case ends in a `LockError` that says the
//! key or setting and what to do, at once or within the request timeout.

use std::time::Duration;

use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    config, connect, connecting, had, healed, is_unavailable, queued, says, served,
};
use crate::support::redis::{RedisServer, Setup};
use crate::support::secure::misconfigured;
use crate::support::wait::{HANG, until, within};

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// Each mistake, and all that is said of it behind the name of the setting.
#[tokio::test]
async fn a_wrong_url_is_told_what_to_write() {
    const NO_URL: &str = "not a URL; write for example redis://127.0.0.1:6379 or memory:";
    const INVALID: &str = "invalid Redis URL: not a URL; write for example redis://127.0.0.1:6379";
    const NO_HOST: &str =
        "invalid Redis URL: a host is missing; write for example redis://127.0.0.1:6379";
    const PORT: &str = "invalid Redis URL: behind the colon of host 1 comes a port, a number from \
                        1 to 65535; write for example redis://127.0.0.1:6379";
    const DATABASE: &str = "invalid Redis URL: behind the host, or in `db`, comes the number of a \
                            database, as in redis://127.0.0.1/0";
    const SEVERAL: &str = "invalid Redis URL: it names several servers, and redis:// is for one; \
                           write redis+cluster:// for the nodes of a cluster, redis+sentinel:// \
                           for sentinels, or redis+redlock:// for servers that know nothing of \
                           each other";
    const MEMORY: &str = "`memory:` takes nothing behind the colon but `?token_floor=N`";
    const KNOWN: &str = "dlock knows memory:, etcd://, etcds://, redis://, rediss://, \
                         redis+unix://, redis+sentinel://, rediss+sentinel://, redis+redlock://, \
                         rediss+redlock://, redis+cluster://, rediss+cluster://, memcached://, \
                         mysql://, postgres://, postgresql://, sqlite://, zookeeper://, \
                         zookeeper+tls://";
    let no_scheme = format!("it has no scheme; did you mean redis://127.0.0.1:6379? {KNOWN}");
    let unknown = format!("its scheme is unknown; {KNOWN}");
    for (url, says) in [
        ("", NO_URL),
        ("localhost", NO_URL),
        ("redis//host", NO_URL),
        ("127.0.0.1:6379", &no_scheme),
        ("reddis://host", &unknown),
        ("http://host", &unknown),
        ("REDIS+foo://host", &unknown),
        ("postgresql+x://host", &unknown),
        ("://", &unknown),
        (":", &unknown),
        ("redis:", INVALID),
        ("redis://", NO_HOST),
        ("redis:///0", NO_HOST),
        ("redis://host:port/", PORT),
        ("redis://host:99999/", PORT),
        ("redis://host/zero", DATABASE),
        ("redis://host/-1", DATABASE),
        ("redis://one,two", SEVERAL),
        ("memory:x", MEMORY),
        ("memory://host", MEMORY),
    ] {
        let error = misconfigured(url, &["store URL"]).await;
        let message = format!("dlock configuration, store URL: {says}");
        assert_eq!(error.to_string(), message, "{url}");
    }
    let unknown = ["invalid Redis URL: it has an unknown parameter; there are "];
    misconfigured("redis://host?ttl=3", &unknown).await;
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
    healed(&manager).await;
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

/// While a script runs for too long, the server lets nobody choose a database, and the client's
/// crate does not pass on why: that the number in the URL is right is known by the text alone.
#[tokio::test]
async fn a_database_of_a_busy_server_is_no_wrong_setting() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let server = RedisServer::start().await;
    let words = ["CONFIG", "SET", "lua-time-limit", "1"];
    server.command::<()>(&words).await;
    let mut blocks = server.connection().await;
    let blocks = tokio::spawn(async move {
        let mut script = redis::cmd("EVAL");
        let script = script.arg("while true do end").arg(0);
        script.query_async::<()>(&mut blocks).await
    });
    let pings = async || server.try_command::<String>(&["PING"]).await;
    until("it is busy", pings, Option::is_none).await;
    let url = format!("redis://127.0.0.1:{}/2", server.port());
    unless_it_stands_still(TIMEOUT / 4, async || {
        let error = is_unavailable(connecting(&url, TIMEOUT).await);
        says(&error, &["busy", "SCRIPT KILL"]);
    })
    .await;
    let connects = tokio::spawn(connect(config(&url)));
    server.command::<()>(&["SCRIPT", "KILL"]).await;
    let ended = blocks.await.expect("no panic");
    assert!(ended.is_err(), "it was ended");
    let manager = within(HANG, connects).await.expect("a connection");
    had(&manager, "key").await;
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
