//! A server that forgets: its scripts, a lock, or all it had.

use std::time::Duration;

use dlock::LockError;
use tokio::time::sleep;

use super::{connect, free, had, healed, queued, unavailable};
use crate::lock_name;
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::{HANG, within};

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
        assert_eq!(manager.list("").await.expect("list").len(), 1);
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
