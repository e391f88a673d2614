//! The Lock call of etcd's own server, by way of its client.

use std::fmt;
use std::future::Future;

use etcd_client::{Client, LockOptions};

use crate::{Locker, TTL};

/// As a program does it that wants its lock to end with it: a lease, the Lock
/// call with that lease, the Unlock call, the end of the lease. Nothing keeps the
/// lease alive here.
#[derive(Clone)]
pub struct EtcdLock {
    client: Client,
}

impl fmt::Debug for EtcdLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLock").finish_non_exhaustive()
    }
}

impl Locker for EtcdLock {
    const NAME: &'static str = "Lock call";

    async fn connect(url: &str) -> Self {
        let host = url.trim_start_matches("etcd://");
        Self {
            client: Client::connect([host], None).await.expect("a connection"),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        let mut client = self.client.clone();
        let seconds = TTL.as_secs() as i64;
        let lease = client.lease_grant(seconds, None).await;
        let lease = lease.expect("a lease").id();
        let options = LockOptions::new().with_lease(lease);
        let lock = client.lock(key, Some(options)).await.expect("the lock");
        let value = body.await;
        client.unlock(lock.key()).await.expect("an answer");
        client.lease_revoke(lease).await.expect("an answer");
        value
    }
}
