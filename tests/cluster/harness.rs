//! What the tests below share.

use dlock::{Config, LockManager};

use crate::support::cluster::Cluster;
use crate::support::locks;
use crate::support::wait::{HANG, until};

pub(crate) fn config(url: &str) -> Config {
    locks::config(url)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    locks::connect(config(url)).await
}

/// One that waits for a slot that is on its way, however long a slow machine takes to move it.
pub(crate) async fn patient(url: &str) -> LockManager {
    locks::connect(config(url).request_timeout(HANG / 6)).await
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
