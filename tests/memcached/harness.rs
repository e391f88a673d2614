//! What the tests below share.

use std::time::Duration;

use dlock::{Config, LockManager};

pub(crate) use crate::support::impatient::connect as hasty;
use crate::support::locks;

/// Longer than a server on a busy machine is silent. Only tests that wait for the end of a
/// request are [`hasty`].
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn config(url: &str) -> Config {
    locks::config(url).request_timeout(PATIENCE)
}

pub(crate) async fn connect(url: &str) -> LockManager {
    locks::connect(config(url)).await
}

pub(crate) async fn holder(manager: &LockManager, key: &str) -> Option<String> {
    let lock = manager.inspect(key).await.expect("inspect")?;
    assert_eq!(lock.holders.len(), 1, "{lock:?}");
    Some(lock.holders[0].owner.clone())
}
