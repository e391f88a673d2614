//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockManager};

use crate::EtcdStore;
use crate::support::etcd::EtcdServer;
pub(crate) use crate::support::impatient::{
    REQUEST_TIMEOUT as HASTE, config as hasty_config, connect as hasty,
};
use crate::support::locks;

/// Longer than a server on a busy machine is silent, or takes to restart. Only tests that wait
/// for the end of a request are [`hasty`].
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn config(url: &str) -> Config {
    locks::config(url).request_timeout(PATIENCE)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    locks::connect(config(url)).await
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
    // As `etcdctl lease list` writes it.
    format!("{:016x}", lease.parse::<i64>().expect("a number"))
}
