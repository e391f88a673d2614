//! The traps of Redis: what gets lost between it and its clients.

mod ghosts;
mod restarts;
mod silence;
mod wakeups;

use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::support::wait::{HANG, eventually, until, within};

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);

/// Leases outlast every test: what comes free was given back.
pub(super) async fn connect(url: &str) -> LockManager {
    let config = Config::from_url(url)
        .expect("a valid URL")
        .ttl(20 * HANG)
        .request_timeout(REQUEST_TIMEOUT);
    within(HANG, LockManager::connect(config))
        .await
        .expect("a connection")
}

pub(super) async fn queued(manager: &LockManager, count: usize) {
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

pub(super) async fn free(manager: &LockManager) {
    until(
        "it is free",
        async || manager.inspect("key").await.expect("inspect"),
        Option::is_none,
    )
    .await;
}

pub(super) async fn had(manager: &LockManager) {
    within(HANG, manager.lock("key").run(async {}))
        .await
        .expect("the lock");
}

/// Asks until it is served again; no other error than that of an outage.
pub(super) async fn healed(manager: &LockManager) {
    eventually("the manager serves again", async || {
        match manager.lock("healed").run(async {}).await {
            Ok(()) => Some(()),
            Err(LockError::Unavailable { .. }) => None,
            Err(error) => panic!("{error:?}"),
        }
    })
    .await;
}

pub(super) fn unavailable<T>(answer: Result<T, LockError>) {
    let error = answer.map(drop).expect_err("an outage");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
}
