//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockError, LockManager};
use tokio::task::JoinHandle;

use crate::support::wait::{HANG, eventually, until, within};

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Leases outlast every test: what comes free was given back.
pub(crate) async fn connect(url: &str) -> LockManager {
    within(HANG, LockManager::connect(config(url)))
        .await
        .expect("a connection")
}

pub(crate) fn config(url: &str) -> Config {
    Config::from_url(url)
        .expect("a valid URL")
        .ttl(20 * HANG)
        .request_timeout(REQUEST_TIMEOUT)
}

pub(crate) async fn had(manager: &LockManager, key: &str) {
    within(HANG, manager.lock(key).run(async {}))
        .await
        .expect("the lock");
}

/// Asks until it is served again; no other error than that of an outage.
pub(crate) async fn healed(manager: &LockManager) {
    eventually("the manager serves again", async || {
        match manager.lock("healed").run(async {}).await {
            Ok(()) => Some(()),
            Err(LockError::Unavailable { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
}

pub(crate) fn unavailable<T>(answer: Result<T, LockError>) {
    let error = answer.map(drop).expect_err("an outage");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
}

pub(crate) fn is_busy<T>(answer: Result<T, LockError>) {
    let error = answer.map(drop).expect_err("a held lock");
    assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
}

/// Waits until so many requests wait for `key`.
pub(crate) async fn queued(judge: &LockManager, key: &str, count: usize) {
    let waiters = async || {
        let lock = judge.inspect(key).await.expect("inspect");
        lock.map_or(0, |lock| lock.waiters)
    };
    until("they wait", waiters, |&waiters| waiters == count).await;
}

/// Waits until nobody holds `key`.
pub(crate) async fn free(judge: &LockManager, key: &str) {
    let inspect = async || judge.inspect(key).await.expect("inspect");
    until("it is free", inspect, Option::is_none).await;
}

/// A waiter, and what becomes of it.
pub(crate) fn waiting(manager: &LockManager, key: &str) -> JoinHandle<Result<(), LockError>> {
    let request = manager.lock(key);
    tokio::spawn(async move { request.run(async {}).await })
}

pub(crate) async fn served(waiting: JoinHandle<Result<(), LockError>>) {
    within(HANG, waiting)
        .await
        .expect("no panic")
        .expect("the lock");
}
