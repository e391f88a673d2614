//! The lock of the `zookeeper-client` crate.

use std::fmt;
use std::future::Future;

use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

use crate::Locker;

/// As it comes, with Curator's names. Dropped, it would delete its node in the
/// background; here that is waited for, as the others wait for theirs.
#[derive(Clone)]
pub struct ZooKeeperLock {
    client: Client,
}

impl fmt::Debug for ZooKeeperLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperLock").finish_non_exhaustive()
    }
}

impl Locker for ZooKeeperLock {
    const NAME: &'static str = "the client's lock";

    async fn connect(url: &str) -> Self {
        let host = url.trim_start_matches("zookeeper://");
        Self {
            client: Client::connect(host).await.expect("a connection"),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        let folder = format!("/theirs/{key}");
        let prefix = LockPrefix::new_curator(&folder, "lock-").expect("a path");
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(container);
        let options = options.expect("a folder");
        let lock = self.client.lock(prefix, b"", options).await;
        let lock = lock.expect("the lock");
        let value = body.await;
        let deleted = self.client.delete(lock.lock_path(), None).await;
        deleted.expect("the lock was lost");
        // It is deleted already.
        std::mem::forget(lock);
        value
    }
}
