//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockError, LockManager};
use tokio::task::JoinHandle;

use crate::EtcdStore;
use crate::support::etcd::EtcdServer;
use crate::support::wait::{HANG, eventually, until, within};

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Leases outlast every test: what comes free was given back.
pub(crate) async fn connect(url: &str) -> LockManager {
    within(HANG, LockManager::connect(config(url)))
        .await
        .expect("a connection")
}

/// The store without its proxy.
pub(crate) fn direct(store: &EtcdStore) -> String {
    format!("etcd://127.0.0.1:{}/{}", store.server.port(), store.prefix)
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

/// The places in the queue for `key`, in their order.
pub(crate) async fn places(store: &EtcdStore, key: &str) -> Vec<String> {
    let queue = format!("{}/{key}/", store.prefix);
    let sorted = ["get", "--prefix", "--keys-only", "--sort-by=CREATE", &queue];
    let keys = store.server.control(&sorted).await;
    let keys = keys.lines().filter(|line| !line.is_empty());
    keys.map(str::to_owned).collect()
}

/// The lease that a key is attached to, in hexadecimal.
pub(crate) async fn lease_of(server: &EtcdServer, key: &str) -> String {
    let fields = server.control(&["get", key, "--write-out=fields"]).await;
    let lease = fields
        .lines()
        .find_map(|line| line.strip_prefix("\"Lease\" : "))
        .expect("a key with a lease");
    format!("{:x}", lease.parse::<i64>().expect("a number"))
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
