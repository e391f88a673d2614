//! The `rslock` crate, on one server and as it comes: who finds a lock held
//! asks again after up to 200 ms.

use std::future::Future;

use crate::{Locker, TTL};

/// One manager of the `rslock` crate.
#[derive(Clone, Debug)]
pub struct Rslock {
    manager: rslock::LockManager,
}

impl Locker for Rslock {
    const NAME: &'static str = "rslock";

    async fn connect(url: &str) -> Self {
        Self {
            manager: rslock::LockManager::new(vec![url]),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        let guard = self.manager.acquire(key, TTL).await.expect("the lock");
        let value = body.await;
        guard.release().await;
        value
    }
}
