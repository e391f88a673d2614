//! Messages and connections that get lost while somebody waits.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use dlock::LockError;
use tokio::time::sleep;

use super::{connect, free, had, healed, queued};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

/// A lost message: the grant is made, and nobody tells the waiter.
#[tokio::test]
async fn a_lost_wake_up_is_found_by_a_re_check() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let holder = connect(&server.url()).await;
    let waiter = connect(&server.url_through(proxy.port())).await;
    for _ in 0..3 {
        let guard = holder.lock("key").acquire().await.expect("the lock");
        let waiting = tokio::spawn({
            let waiter = waiter.clone();
            async move { waiter.lock("key").acquire().await }
        });
        queued(&holder, 1).await;
        proxy.swallow_replies(true);
        guard.release().await.expect("the release");
        // The message is on its way into the void; then the connection breaks.
        sleep(Duration::from_millis(50)).await;
        proxy.swallow_replies(false);
        match within(HANG, waiting).await.expect("no panic") {
            Ok(guard) => drop(guard),
            Err(LockError::Unavailable { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
        healed(&waiter).await;
        free(&holder).await;
    }
}

/// Only the connections for wake-ups are closed, over and over, as the lock
/// goes from hand to hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_subscriptions_delay_nobody_for_long() {
    let server = RedisServer::start().await;
    let managers = [connect(&server.url()).await, connect(&server.url()).await];
    let done = Cell::new(false);
    let mut players = tokio::task::JoinSet::new();
    for manager in managers.clone() {
        players.spawn(async move {
            for _ in 0..50 {
                manager
                    .lock("key")
                    .run(sleep(Duration::from_millis(2)))
                    .await?;
            }
            Ok::<_, LockError>(())
        });
    }
    let killer = async {
        let mut killed = 0_u32;
        while !done.get() {
            killed += server
                .command::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"])
                .await;
            sleep(Duration::from_millis(20)).await;
        }
        killed
    };
    let play = async {
        let all = within(2 * HANG, players.join_all()).await;
        done.set(true);
        all.into_iter()
            .collect::<Result<(), _>>()
            .expect("the lock");
    };
    let (killed, ()) = tokio::join!(killer, play);
    assert!(killed > 0, "no subscription was closed");
    free(&managers[0]).await;
}

/// Every connection is cut, over and over: calls may fail with `Unavailable`,
/// but nothing overlaps, nothing hangs, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_leave_nothing_behind() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let url = server.url_through(proxy.port());
    let inside = Arc::new(AtomicBool::new(false));
    let mut players = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let manager = connect(&url).await;
        for _ in 0..4 {
            let (manager, inside) = (manager.clone(), Arc::clone(&inside));
            players.spawn(async move {
                let mut had = 0;
                while had < 25 {
                    let body = async {
                        assert!(!inside.swap(true, SeqCst), "two bodies at once");
                        sleep(Duration::from_millis(2)).await;
                        inside.store(false, SeqCst);
                    };
                    match manager.lock("key").run(body).await {
                        Ok(()) => had += 1,
                        Err(LockError::Unavailable { .. }) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
    }
    let play = within(2 * HANG, players.join_all());
    let cut = async {
        loop {
            sleep(Duration::from_millis(60)).await;
            proxy.cut();
        }
    };
    tokio::select! {
        _ = play => {}
        () = cut => {}
    }
    let judge = connect(&server.url()).await;
    free(&judge).await;
    had(&judge).await;
}
