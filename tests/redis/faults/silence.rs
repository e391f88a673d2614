//! A server, or a runtime, that is there and does nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dlock::{Config, LockError, LockManager, current};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::{REQUEST_TIMEOUT, connect, free, had, healed, queued, unavailable};
use crate::lock_name;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, eventually, within};

/// A half-open connection: it is there, and nothing comes over it any more.
#[tokio::test]
async fn a_half_open_connection_is_noticed() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let manager = connect(&server.url_through(proxy.port())).await;
    let (holder, judge) = (connect(&server.url()).await, connect(&server.url()).await);
    let ttl = Duration::from_millis(900);
    let own = manager
        .lock("own")
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    let other = holder.lock("key").acquire().await.expect("the lock");
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("key").run(async {}).await }
    });
    queued(&judge, 1).await;

    proxy.stall(true);
    // What is held is lost in time, and calls say that the store is away.
    within(HANG, own.lost()).await;
    unavailable(within(HANG, manager.lock("new").acquire()).await);
    unavailable(within(HANG, manager.inspect("key")).await);
    other.release().await.expect("the release");
    proxy.stall(false);
    // The waiter was told of the outage, or is served now.
    match within(HANG, waiting).await.expect("no panic") {
        Ok(()) | Err(LockError::Unavailable { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
    healed(&manager).await;
    free(&judge).await;
    had(&manager).await;
}

/// A slow network: a lease is counted from when its request was sent, not from
/// when the answer came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_ends_here_before_it_ends_in_the_store() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let ttl = Duration::from_secs(2);
    let config = Config::from_url(&server.url_through(proxy.port())).expect("a valid URL");
    let manager = LockManager::connect(config).await.expect("a connection");
    had(&manager).await;
    proxy.delay(Some(ttl / 8));
    for renewals in [0, 1] {
        let request = manager.lock("key").ttl(ttl);
        let request = match renewals {
            0 => request.renew(false),
            // One renewal falls before it.
            _ => request.max_hold(ttl / 2),
        };
        let guard = within(HANG, request.acquire()).await.expect("the lock");
        let ended = async || {
            // In this order: the store first, then the holder.
            let there: u32 = server.command(&["EXISTS", &lock_name("key")]).await;
            (there == 0).then(|| !guard.is_held())
        };
        let knew = eventually("the lock expires", ended).await;
        assert!(knew, "its holder believes in a lock that is free");
    }
}

/// The request timeout bounds an outage, and not some time of dlock's own.
#[tokio::test]
async fn an_outage_is_reported_within_the_request_timeout() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let url = server.url_through(proxy.port());
    let with_timeout = async |timeout| {
        let config = Config::from_url(&url).expect("a valid URL");
        let manager = LockManager::connect(config.request_timeout(timeout)).await;
        let manager = manager.expect("a connection");
        had(&manager).await;
        manager
    };
    let hasty = with_timeout(Duration::from_millis(100)).await;
    let patient = with_timeout(HANG / 2).await;
    proxy.stall(true);
    let ten_times = async {
        for _ in 0..5 {
            unavailable(hasty.lock("key").try_acquire().await);
            unavailable(hasty.lock("key").acquire().await);
        }
    };
    let once = async { unavailable(patient.lock("key").try_acquire().await) };
    tokio::select! {
        biased;
        () = once => panic!("ten short timeouts took longer than one long one"),
        () = within(HANG, ten_times) => {}
    }
}

/// The server itself stands still, then goes on.
#[tokio::test]
async fn a_server_that_stands_still_is_noticed() {
    let server = RedisServer::start().await;
    let manager = connect(&server.url()).await;
    let ttl = Duration::from_millis(900);
    let guard = manager
        .lock("key")
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    server.pause();
    within(HANG, guard.lost()).await;
    unavailable(within(HANG, manager.lock("new").acquire()).await);
    server.resume();
    healed(&manager).await;
    had(&manager).await;
    drop(guard);
    free(&manager).await;
}

/// The server goes away in the middle of a body, and does not come back.
#[tokio::test]
async fn a_server_that_is_gone_ends_the_body() {
    let mut server = RedisServer::start().await;
    let manager = connect(&server.url()).await;
    let address = format!("127.0.0.1:{}", server.port());
    let ttl = Duration::from_millis(900);
    let (inside, is_inside) = oneshot::channel();
    let body = async {
        inside.send(()).expect("the test waits");
        sleep(2 * HANG).await;
    };
    let run = manager.lock("key").ttl(ttl).run(body);
    let kill = async {
        is_inside.await.expect("the body runs");
        server.kill();
    };
    let (ended, ()) = within(HANG, async { tokio::join!(run, kill) }).await;
    let error = ended.expect_err("a lease that cannot be renewed");
    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
    let error = within(HANG, manager.lock("key").acquire())
        .await
        .expect_err("no server");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    let message = error.to_string();
    assert!(
        message.contains("`key`") && message.contains(&address),
        "{message}"
    );
    // Giving up does not wait for a server that is gone for ever.
    within(HANG, manager.shutdown()).await;
}

/// The manager was connected on the very runtime that the body blocks.
#[test]
fn a_body_that_blocks_the_runtime_of_its_manager_keeps_its_lease() {
    let ttl = Duration::from_millis(900);
    let outside = tokio::runtime::Runtime::new().expect("a runtime");
    let server = outside.block_on(RedisServer::start());
    let url = server.url();
    let over = Arc::new(AtomicBool::new(false));
    let (inside, is_inside) = std::sync::mpsc::channel();
    let blocked = std::thread::spawn({
        let (url, over) = (url.clone(), Arc::clone(&over));
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("one");
            runtime.block_on(async {
                let manager = connect(&url).await;
                let body = async {
                    inside.send(()).expect("the test waits");
                    std::thread::sleep(3 * ttl);
                    tokio::task::yield_now().await;
                    let held = current().expect("inside the lock").is_held();
                    over.store(true, SeqCst);
                    held
                };
                manager.lock("key").ttl(ttl).run(body).await
            })
        }
    });
    is_inside.recv().expect("the body runs");
    outside.block_on(async {
        let other = connect(&url).await;
        let start = Instant::now();
        while !over.load(SeqCst) {
            match other.lock("key").try_acquire().await {
                Err(LockError::Busy { .. }) => sleep(ttl / 20).await,
                Ok(_) => assert!(over.load(SeqCst), "had while the body was inside"),
                Err(error) => panic!("{error:?}"),
            }
            assert!(start.elapsed() < HANG, "the body hangs");
        }
        had(&other).await;
    });
    let held = blocked
        .join()
        .expect("no panic")
        .expect("a lease that was kept");
    assert!(held, "the lease was lost while the body blocked");
}

/// A caller whose patience is shorter than the request timeout hears of an
/// outage too, and not of somebody who would hold the lock.
#[tokio::test]
async fn a_short_timeout_does_not_hide_an_outage() {
    let mut server = RedisServer::start().await;
    let (manager, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let limit = REQUEST_TIMEOUT / 5;
    let guard = other.lock("key").acquire().await.expect("the lock");
    let held = manager.lock("key").acquire_within(limit).await;
    assert!(matches!(held, Err(LockError::Timeout { .. })), "{held:?}");
    server.shut_down().await;
    unavailable(within(HANG, manager.lock("key").acquire_within(limit)).await);
    drop(guard);
}

/// A server of many keys is not one that is silent.
#[tokio::test]
async fn a_list_may_take_longer_than_one_request() {
    const LIMIT: Duration = Duration::from_secs(2);
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let url = server.url_through(proxy.port());
    let config = Config::from_url(&url).expect("a valid URL");
    let manager = LockManager::connect(config.request_timeout(LIMIT))
        .await
        .expect("a connection");
    let _held = manager.lock("key").acquire().await.expect("the lock");
    let fill = "for i = 1, 30000 do redis.call('SET', 'other:' .. i, 1) end";
    server.command::<()>(&["EVAL", fill, "0"]).await;
    proxy.delay(Some(Duration::from_millis(50)));
    let start = Instant::now();
    let listed = within(HANG, manager.list("")).await.expect("list");
    assert_eq!(listed.len(), 1);
    assert!(start.elapsed() > LIMIT, "too quick to show anything");
    proxy.delay(None);
}
