//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::support::memcached::MemcachedServer;
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

/// Waits until the store knows of no lock on `key`.
pub(crate) async fn free(manager: &LockManager, key: &str) {
    let inspect = async || manager.inspect(key).await.expect("inspect");
    until(&format!("`{key}` is free"), inspect, Option::is_none).await;
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

pub(crate) async fn holder(manager: &LockManager, key: &str) -> Option<String> {
    let lock = manager.inspect(key).await.expect("inspect")?;
    let [holder] = lock.holders.as_slice() else {
        panic!("one holder, not {lock:?}")
    };
    Some(holder.owner.clone())
}

pub(crate) fn is_busy<T>(answer: Result<T, LockError>) {
    let error = answer.map(drop).expect_err("a held lock");
    assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
}

pub(crate) fn unavailable<T>(answer: Result<T, LockError>) {
    let error = answer.map(drop).expect_err("an outage");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
}

/// Waits until the server has a lock on `key`.
pub(crate) async fn reached(server: &MemcachedServer, key: &str) {
    let name = format!("dlock%3A{key}");
    let there = async || server.items().contains(&name);
    until("the request reaches the server", there, |&there| there).await;
}
