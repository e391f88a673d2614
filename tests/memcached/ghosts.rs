//! Requests that were given up, and arrive later all the same.

use std::time::Duration;

use crate::harness::{connect, free, had, healed, is_busy, reached, unavailable};
use crate::support::memcached::{MemcachedServer, memcached_url};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, until, within};
use crate::{TTL, lock_name};

/// The request was given up, and takes effect later all the same.
#[tokio::test]
async fn a_request_that_arrives_late_leaves_no_ghost() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = connect(&memcached_url(proxy.port())).await;
    had(&manager, "key").await;
    for wait in [false, true] {
        // What is sent now reaches the server once the stall ends.
        proxy.stall(true);
        let answer = if wait {
            within(HANG, manager.lock("key").acquire()).await
        } else {
            within(HANG, manager.lock("key").try_acquire()).await
        };
        unavailable(answer);
        proxy.stall(false);
        healed(&manager).await;
        free(&judge, "key").await;
        had(&judge, "key").await;
        had(&manager, "key").await;
    }
}

/// The reply is lost instead: the server has granted, and nobody knows.
#[tokio::test]
async fn a_lost_reply_leaves_no_ghost() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = connect(&memcached_url(proxy.port())).await;
    had(&manager, "key").await;
    proxy.swallow_replies(true);
    unavailable(within(HANG, manager.lock("key").try_acquire()).await);
    reached(&server, "key").await;
    proxy.swallow_replies(false);
    free(&judge, "key").await;
    healed(&manager).await;
    had(&judge, "key").await;
}

/// It is not taken for somebody else's lock.
#[tokio::test]
async fn a_lock_whose_reply_was_lost_is_had() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = connect(&memcached_url(proxy.port())).await;
    had(&manager, "key").await;
    proxy.swallow_replies(true);
    let call = manager.lock("key").try_acquire();
    let replies_come_again = async {
        reached(&server, "key").await;
        proxy.swallow_replies(false);
    };
    let (guard, ()) = within(HANG, async { tokio::join!(call, replies_come_again) }).await;
    let guard = guard.expect("the lock");
    is_busy(judge.lock("key").try_acquire().await);
    guard.release().await.expect("the release");
    free(&judge, "key").await;
}

/// A call that is dropped while its request is on the way.
#[tokio::test]
async fn a_dropped_call_that_arrives_late_leaves_no_ghost() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = connect(&memcached_url(proxy.port())).await;
    had(&manager, "key").await;
    for wait in [false, true] {
        proxy.stall(true);
        let call = async {
            if wait {
                manager.lock("key").acquire().await.map(drop)
            } else {
                manager.lock("key").try_acquire().await.map(drop)
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(50), call).await;
        proxy.stall(false);
        healed(&manager).await;
        free(&judge, "key").await;
        had(&judge, "key").await;
    }
}

/// A waiter that has lost an answer long ago loses another one: what gives the
/// lock back does so for as long as the later request may arrive.
#[tokio::test]
async fn the_last_of_several_late_requests_leaves_no_ghost() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = connect(&memcached_url(proxy.port())).await;
    had(&manager, "key").await;
    let held = judge.lock("key").acquire().await.expect("the lock");

    // The first answer is lost with its connection.
    proxy.cut();
    let log = server.log();
    let waiting = tokio::spawn(manager.lock("key").ttl(TTL).renew(false).acquire());
    let waiters = async || log.waiters(&lock_name("key"));
    until("it waits", waiters, |&waiting| waiting == 1).await;
    // What was sent before it would have run out by now.
    tokio::time::sleep(TTL).await;
    proxy.hold_back(Some("ms dlock:key "));
    held.release().await.expect("the release");
    let is_held_back = async || proxy.holds_back();
    until("it asks again", is_held_back, |&is| is).await;
    let guard = within(HANG, waiting).await.expect("no panic");
    guard
        .expect("the lock")
        .release()
        .await
        .expect("the release");

    let deleted = server.stat("delete_hits");
    proxy.hold_back(None);
    let deletions = async || server.stat("delete_hits");
    until("it is given back", deletions, |&now| now > deleted).await;
}

/// Its runtime ends while its request is on the way.
#[test]
fn a_call_whose_runtime_has_ended_leaves_no_ghost() {
    let runtime = || tokio::runtime::Runtime::new().expect("a runtime");
    let lasting = runtime();
    let (server, proxy, judge, manager) = lasting.block_on(async {
        let server = MemcachedServer::start().await;
        let proxy = Proxy::to(server.port());
        let judge = connect(&server.url()).await;
        let manager = connect(&memcached_url(proxy.port())).await;
        (server, proxy, judge, manager)
    });
    let ends = runtime();
    ends.block_on(async {
        had(&manager, "key").await;
        proxy.stall(true);
        let call = manager.lock("key").acquire();
        let _ = tokio::time::timeout(Duration::from_millis(50), call).await;
    });
    drop(ends);
    proxy.stall(false);
    lasting.block_on(async {
        healed(&manager).await;
        free(&judge, "key").await;
        had(&judge, "key").await;
    });
    drop(server);
}

/// Who shuts down may end the process: nobody would be left to give back what
/// was dropped before that.
#[tokio::test]
async fn a_shutdown_waits_for_what_was_dropped() {
    let server = MemcachedServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = connect(&memcached_url(proxy.port())).await;
    had(&manager, "key").await;
    proxy.delay(Some(Duration::from_millis(50)));
    tokio::select! {
        biased;
        () = reached(&server, "key") => {}
        answer = manager.lock("key").acquire() => panic!("{answer:?} before its answer could come"),
    }
    within(HANG, manager.shutdown()).await;
    // No waiting here.
    assert!(judge.inspect("key").await.expect("inspect").is_none());
}
