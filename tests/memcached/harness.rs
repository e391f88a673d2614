//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockManager};

use crate::support::locks;

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn config(url: &str) -> Config {
    locks::config(url).request_timeout(REQUEST_TIMEOUT)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    locks::connect(config(url)).await
}

pub(crate) async fn holder(manager: &LockManager, key: &str) -> Option<String> {
    let lock = manager.inspect(key).await.expect("inspect")?;
    assert_eq!(lock.holders.len(), 1, "{lock:?}");
    Some(lock.holders[0].owner.clone())
}
