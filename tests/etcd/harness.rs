//! What the tests below share.

use crate::EtcdStore;
use crate::support::etcd::EtcdServer;
// For tests that wait for the end of a request.
pub(crate) use crate::support::impatient::{
    REQUEST_TIMEOUT as HASTE, config as hasty_config, connect as hasty,
};
pub(crate) use crate::support::patient::{REQUEST_TIMEOUT as PATIENCE, config, connect};

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
