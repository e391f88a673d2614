//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::support::nodes::Nodes;
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

pub(crate) fn is_busy<T>(answer: Result<T, LockError>) {
    let error = answer.map(drop).expect_err("a held lock");
    assert!(matches!(error, LockError::Busy { .. }), "{error:?}");
}

pub(crate) fn unavailable<T>(answer: Result<T, LockError>) {
    let error = answer.map(drop).expect_err("an outage");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
}

/// Waits until no server keeps anything but its token counter.
pub(crate) async fn nothing_left(nodes: &Nodes) {
    let keys = async || nodes.keys().await;
    until("nothing is left", keys, Vec::is_empty).await;
}

/// Waits until somebody waits for this lock.
pub(crate) async fn waited_for(manager: &LockManager, key: &str) {
    let waiters = async || {
        let lock = manager.inspect(key).await.expect("inspect");
        lock.map_or(0, |lock| lock.waiters)
    };
    until("somebody waits", waiters, |&waiters| waiters == 1).await;
}
