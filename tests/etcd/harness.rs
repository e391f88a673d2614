//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockManager};

use crate::EtcdStore;
use crate::support::etcd::EtcdServer;
use crate::support::locks;

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn config(url: &str) -> Config {
    locks::config(url).request_timeout(REQUEST_TIMEOUT)
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
    format!("{:x}", lease.parse::<i64>().expect("a number"))
}
