//! Requests that were given up, and arrive later all the same.

use std::time::Duration;

use super::{connect, free, had, healed, unavailable};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, until, within};

/// The request was given up, and takes effect later all the same.
#[tokio::test]
async fn a_request_that_arrives_late_leaves_no_ghost() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    for fresh in [false, true] {
        let manager = connect(&server.url_through(proxy.port())).await;
        if !fresh {
            had(&manager).await;
        }
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
            // The late request was answered before that, on the same way.
            free(&judge).await;
            had(&judge).await;
            had(&manager).await;
        }
        // The reply is lost instead: the server has granted, and nobody knows.
        proxy.swallow_replies(true);
        unavailable(within(HANG, manager.lock("key").try_acquire()).await);
        proxy.swallow_replies(false);
        healed(&manager).await;
        free(&judge).await;
        had(&judge).await;
    }
}

/// A call that is dropped while its request is on the way.
#[tokio::test]
async fn a_dropped_call_that_arrives_late_leaves_no_ghost() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let manager = connect(&server.url_through(proxy.port())).await;
    had(&manager).await;
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
        free(&judge).await;
        had(&judge).await;
    }
}

/// Who shuts down may end the process: nobody would be left to give back what
/// was dropped before that.
#[tokio::test]
async fn a_shutdown_waits_for_what_was_dropped() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let judge = connect(&server.url()).await;
    let holder = judge.lock("held").acquire().await.expect("the lock");
    for key in ["key", "held"] {
        let manager = connect(&server.url_through(proxy.port())).await;
        had(&manager).await;
        proxy.delay(Some(Duration::from_millis(50)));
        let call = manager.lock(key).acquire();
        let seen = until(
            "the call reaches the server",
            async || judge.inspect(key).await.expect("inspect"),
            |lock| {
                lock.as_ref()
                    .is_some_and(|lock| key == "key" || lock.waiters > 0)
            },
        );
        tokio::select! {
            biased;
            _ = seen => {}
            answer = call => panic!("{answer:?} before its answer could come"),
        }
        within(HANG, manager.shutdown()).await;
        // No waiting here.
        let left = judge.inspect(key).await.expect("inspect");
        assert_eq!(left.map(|lock| lock.waiters), (key == "held").then_some(0));
        proxy.delay(None);
    }
    holder.release().await.expect("the release");
}
