//! The traps of Redis: what gets lost between it and its clients.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dlock::{Config, LockError, LockManager, current};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::lock_name;
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::{HANG, eventually, until, within};

const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// Leases outlast every test: what comes free was given back.
async fn connect(url: &str) -> LockManager {
    let config = Config::from_url(url)
        .expect("a valid URL")
        .ttl(20 * HANG)
        .request_timeout(REQUEST_TIMEOUT);
    within(HANG, LockManager::connect(config))
        .await
        .expect("a connection")
}

async fn queued(manager: &LockManager, count: usize) {
    until(
        "the waiters wait",
        async || {
            manager
                .inspect("key")
                .await
                .expect("inspect")
                .map_or(0, |lock| lock.waiters)
        },
        |&waiting| waiting == count,
    )
    .await;
}

async fn free(manager: &LockManager) {
    until(
        "it is free",
        async || manager.inspect("key").await.expect("inspect"),
        Option::is_none,
    )
    .await;
}

async fn had(manager: &LockManager) {
    within(HANG, manager.lock("key").run(async {}))
        .await
        .expect("the lock");
}

/// Asks until it is served again; no other error than that of an outage.
async fn healed(manager: &LockManager) {
    eventually("the manager serves again", async || {
        match manager.lock("healed").run(async {}).await {
            Ok(()) => Some(()),
            Err(LockError::Unavailable { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
}

fn unavailable<T>(answer: Result<T, LockError>) {
    let error = answer.map(drop).expect_err("an outage");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
}

/// `NOSCRIPT`: the server forgets the scripts between any two commands.
#[tokio::test]
async fn scripts_that_were_flushed_are_sent_again() {
    let server = RedisServer::start().await;
    let (manager, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let flush = async || server.command::<()>(&["SCRIPT", "FLUSH"]).await;
    for _ in 0..3 {
        flush().await;
        let guard = manager.lock("key").acquire().await.expect("the lock");
        flush().await;
        let busy = other.lock("key").try_acquire().await;
        assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
        flush().await;
        let waiting = tokio::spawn({
            let other = other.clone();
            async move { other.lock("key").run(async {}).await }
        });
        queued(&manager, 1).await;
        flush().await;
        guard.release().await.expect("the release");
        within(HANG, waiting)
            .await
            .expect("no panic")
            .expect("the lock");
        flush().await;
        let guard = manager
            .lock("key")
            .read()
            .acquire()
            .await
            .expect("the read lock");
        flush().await;
        assert!(manager.inspect("key").await.expect("inspect").is_some());
        flush().await;
        drop(guard);
        free(&manager).await;
    }
    // A renewal finds none either.
    let ttl = Duration::from_millis(900);
    let guard = manager
        .lock("key")
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    flush().await;
    sleep(2 * ttl).await;
    assert!(guard.is_held());
}

/// The server comes back empty: leases are lost, and told as lost.
#[tokio::test]
async fn a_restart_that_forgets_loses_the_leases() {
    let mut server = RedisServer::start().await;
    let (manager, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let ttl = Duration::from_secs(2);
    let guard = manager
        .lock("key")
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    server.restart().await;
    within(HANG, guard.lost()).await;
    let error = guard.release().await.expect_err("nothing to give back");
    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
    healed(&other).await;
    had(&other).await;
    healed(&manager).await;
    had(&manager).await;
}

/// The server comes back with all it had: nobody loses anything.
#[tokio::test]
async fn a_restart_that_remembers_keeps_locks_and_waiters() {
    let mut server = Setup::default().append_only().start().await;
    let (manager, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let guard = manager.lock("key").acquire().await.expect("the lock");
    server.shut_down().await;
    unavailable(within(HANG, other.lock("key").acquire()).await);
    server.restart().await;
    healed(&other).await;
    assert!(guard.is_held());
    let busy = other.lock("key").try_acquire().await;
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    healed(&manager).await;
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.lock("key").run(async {}).await }
    });
    queued(&manager, 1).await;
    guard.release().await.expect("the release");
    within(HANG, waiting)
        .await
        .expect("no panic")
        .expect("the lock");
}

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

/// A lock deleted by hand comes free for others, and its holder hears of it.
#[tokio::test]
async fn a_deleted_lock_goes_to_its_waiter() {
    let server = RedisServer::start().await;
    let (holder, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let ttl = Duration::from_millis(900);
    let guard = holder
        .lock("key")
        .ttl(ttl)
        .acquire()
        .await
        .expect("the lock");
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.lock("key").acquire().await }
    });
    queued(&holder, 1).await;
    server.command::<u32>(&["DEL", &lock_name("key")]).await;
    within(HANG, guard.lost()).await;
    let next = within(HANG, waiting)
        .await
        .expect("no panic")
        .expect("the lock");
    assert!(next.token() > guard.token());
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
