//! dlock's permits.

use std::future::Future;

use dlock::LockManager;

use crate::{Dlock, Locker};

/// So many bodies of a key at once.
const PERMITS: u32 = 8;

/// One manager, as a service has it.
#[derive(Clone, Debug)]
pub struct Permits {
    manager: LockManager,
}

impl Locker for Permits {
    const NAME: &'static str = "permits";

    async fn connect(url: &str) -> Self {
        let dlock = Dlock::connect(url).await;
        Self {
            manager: dlock.manager().clone(),
        }
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        let permit = self.manager.lock(key).permits(PERMITS);
        permit.run(body).await.expect("the lock")
    }
}
