//! dlock itself.

use std::future::Future;

use dlock::{Config, LockManager};

use crate::{Locker, TTL};

/// One manager, as a service has it.
#[derive(Clone, Debug)]
pub struct Dlock {
    manager: LockManager,
}

impl Dlock {
    /// On the `memory:` store.
    pub async fn in_memory() -> Self {
        Self::connect("memory:").await
    }

    /// The manager itself.
    #[must_use]
    pub fn manager(&self) -> &LockManager {
        &self.manager
    }
}

impl Locker for Dlock {
    const NAME: &'static str = "dlock";

    async fn connect(url: &str) -> Self {
        let config = Config::from_url(url).expect("a valid URL").ttl(TTL);
        Self {
            manager: LockManager::connect(config).await.expect("a connection"),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        self.manager.lock(key).run(body).await.expect("the lock")
    }
}
