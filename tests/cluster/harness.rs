//! What the tests below share.

use dlock::{Config, LockError, LockManager};

use crate::support::cluster::Cluster;
use crate::support::wait::{HANG, eventually, until, within};

/// Leases outlast every test: what comes free was given back.
pub(crate) async fn connect(url: &str) -> LockManager {
    within(HANG, LockManager::connect(config(url)))
        .await
        .expect("a connection")
}

pub(crate) fn config(url: &str) -> Config {
    Config::from_url(url).expect("a valid URL").ttl(20 * HANG)
}

pub(crate) async fn had(manager: &LockManager, key: &str) {
    within(HANG, manager.lock(key).run(async {}))
        .await
        .expect("the lock");
}

/// Asks until it is served again; no other error than that of an outage.
pub(crate) async fn healed(manager: &LockManager, key: &str) {
    eventually("the manager serves again", async || {
        match manager.lock(key).run(async {}).await {
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

/// Waits until so many wait for this lock.
pub(crate) async fn waited_for(manager: &LockManager, key: &str, count: usize) {
    let waiters = async || {
        let lock = manager.inspect(key).await.ok().flatten();
        lock.map_or(0, |lock| lock.waiters)
    };
    until("they wait", waiters, |&waiters| waiters == count).await;
}

/// Waits until no master keeps anything of a lock.
pub(crate) async fn nothing_left(cluster: &Cluster) {
    let keys = async || cluster.keys().await;
    until("nothing is left", keys, Vec::is_empty).await;
}

pub(crate) fn lock_name(key: &str) -> String {
    format!("dlock:{{{key}}}")
}

/// A key whose lock is on the master of this number.
pub(crate) async fn key_on(cluster: &Cluster, master: usize) -> String {
    for number in 0.. {
        let key = format!("key:{number}");
        let slot = cluster.slot(&lock_name(&key)).await;
        if slot * cluster.masters().len() / 16384 == master {
            return key;
        }
    }
    unreachable!("every slot has keys")
}

pub(crate) fn says(error: &LockError, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(
            message.contains(word),
            "{word:?} is missing from: {message}"
        );
    }
}
