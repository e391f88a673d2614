//! What the tests below share.

use dlock::LockManager;

pub(crate) use crate::support::impatient::{config, connect};

pub(crate) async fn holder(manager: &LockManager, key: &str) -> Option<String> {
    let lock = manager.inspect(key).await.expect("inspect")?;
    assert_eq!(lock.holders.len(), 1, "{lock:?}");
    Some(lock.holders[0].owner.clone())
}
