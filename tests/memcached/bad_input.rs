//! What is wrong from the start, or cannot be had of a cache: an error that says
//! which setting or key it is, and what to do.

use std::time::Duration;

use dlock::LockManager;

use crate::harness::{config, connect};
use crate::lock_name;
use crate::support::locks::{
    had, held, is_busy, is_misconfigured, is_unavailable, is_unsupported, says,
};
use crate::support::memcached::MemcachedServer;
use crate::support::secure::{all_misconfigured, misconfigured};
use crate::support::wait::{HANG, eventually, within};

#[tokio::test]
async fn a_wrong_url_names_the_setting() {
    all_misconfigured(&[
        ("memcached:", &["store URL", "not a URL"]),
        ("memcached://", &["store URL", "a host is missing"]),
        ("memcached://user:hunter2@cache", &["store URL", "no login"]),
        ("memcached://one,two", &["store URL", "several servers"]),
        ("memcached://[::1]", &["store URL", "IPv4"]),
        ("memcached://cache/0", &["store URL", "behind the host"]),
    ])
    .await;
}

#[tokio::test]
async fn a_ttl_below_three_seconds_says_how_it_is_kept() {
    let server = MemcachedServer::start().await;
    let manager = connect(&server.url()).await;
    for ttl in [Duration::from_millis(2_999), Duration::from_millis(10)] {
        let short = manager.lock("key").ttl(ttl).acquire().await;
        let configured = LockManager::connect(config(&server.url()).ttl(ttl)).await;
        for error in [short.map(drop), configured.map(drop)] {
            let error = is_misconfigured(error);
            says(&error, &["ttl", "memcached", "3s", "rounds up", "1s"]);
        }
    }
}

/// A number above 30 days is a date to memcached, and long past.
#[tokio::test]
async fn a_lease_of_over_thirty_days_is_refused() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let server = MemcachedServer::start().await;
    let manager = connect(&server.url()).await;
    let long = manager.lock("key").ttl(30 * DAY).try_acquire().await;
    let error = is_misconfigured(long);
    says(&error, &["ttl", "30 days", "shorter"]);
    let guard = held(manager.lock("key").ttl(29 * DAY)).await;
    is_busy(connect(&server.url()).await.lock("key").try_acquire().await);
    guard.release().await.expect("the release");
}

#[tokio::test]
async fn what_a_cache_cannot_do_is_unsupported() {
    let server = MemcachedServer::start().await;
    let manager = connect(&server.url()).await;
    let capabilities = manager.capabilities();
    assert!(!capabilities.fair && !capabilities.read_write);
    let read = manager.lock("key").read();
    let fenced = manager.lock("key").fenced(true).acquire().await;
    let all_fenced = LockManager::connect(config(&server.url()).fenced(true)).await;
    for (refused, word) in [
        (read.clone().acquire().await.map(drop), "read locks"),
        (read.clone().try_acquire().await.map(drop), "read locks"),
        (read.run(async {}).await, "read locks"),
        (fenced.map(drop), "`fenced`"),
        (all_fenced.map(drop), "`fenced`"),
    ] {
        let error = is_unsupported(refused);
        says(&error, &[word, "memcached"]);
    }
}

/// It has an IPv6 address as well, as a rule: that is not another server.
#[tokio::test]
async fn a_name_is_looked_up() {
    let server = MemcachedServer::start().await;
    let url = format!("memcached://localhost:{}", server.port());
    had(&connect(&url).await, "key").await;
}

/// A cache with many items has few locks, or is too long to look through.
#[tokio::test]
async fn a_list_that_takes_too_long_is_told() {
    const ITEMS: usize = 100_000;
    let server = MemcachedServer::start().await;
    let hurried = |timeout| LockManager::connect(config(&server.url()).request_timeout(timeout));
    let patient = hurried(HANG).await.expect("a connection");
    let sets: String = (0..ITEMS)
        .map(|number| format!("set other:{number} 0 0 1 noreply\r\n1\r\n"))
        .collect();
    assert_eq!(server.talk(sets.as_bytes()), b"");
    // So little time may be too little for the connection as well.
    let error = eventually("the list is too long", async || {
        let hasty = hurried(Duration::from_millis(100)).await.ok()?;
        let error = is_unavailable(hasty.list("").await);
        let too_many = error.to_string().contains("too many items");
        too_many.then_some(error)
    })
    .await;
    says(&error, &["request timeout", "of their own"]);
    let guard = held(patient.lock("key")).await;
    let locks = patient.list("").await.expect("a list");
    assert_eq!(locks.len(), 1, "{locks:?}");
    guard.release().await.expect("the release");
}

/// Without numbers there is no telling whose an item is.
#[tokio::test]
async fn a_server_without_cas_is_refused() {
    let server = MemcachedServer::start_with(&["-C"]).await;
    misconfigured(&server.url(), &["-C", "disable-cas"]).await;
}

#[tokio::test]
async fn a_server_that_lists_nothing_says_so() {
    let server = MemcachedServer::start_with(&["-X"]).await;
    let manager = connect(&server.url()).await;
    let guard = held(manager.lock("key")).await;
    let error = is_unsupported(manager.list("").await);
    says(&error, &["-X", "inspect"]);
    assert!(manager.inspect("key").await.expect("inspect").is_some());
    guard.release().await.expect("the release");
}

/// Another program's value where the lock belongs is never overwritten.
#[tokio::test]
async fn a_foreign_value_is_left_alone() {
    let server = MemcachedServer::start().await;
    let manager = connect(&server.url()).await;
    let name = lock_name("key");
    server.ask(&format!("set {name} 0 0 5\r\nhello"), &["STORED"]);
    is_busy(manager.lock("key").try_acquire().await);
    let error = is_misconfigured(within(HANG, manager.lock("key").acquire()).await);
    says(&error, &[&name, "dlock did not write"]);
    // It may be a secret.
    let shown = format!("{:?}", manager.inspect("key").await.expect("inspect"));
    assert!(shown.contains("dlock did not write"), "{shown}");
    assert!(!shown.contains("hello"), "{shown}");
    let kept = server.ask(&format!("get {name}"), &["END"]);
    assert_eq!(kept[1], "hello");
    server.delete(&name);
    had(&manager, "key").await;
}

#[test]
fn a_runtime_without_io_is_told() {
    let lasting = tokio::runtime::Runtime::new().expect("a runtime");
    let (server, manager) = lasting.block_on(async {
        let server = MemcachedServer::start().await;
        let manager = connect(&server.url()).await;
        (server, manager)
    });
    let bare = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let error = bare.block_on(manager.lock("key").try_acquire());
    let error = is_unsupported(error);
    says(&error, &["enable_all"]);
    lasting.block_on(had(&manager, "key"));
    drop(server);
}
