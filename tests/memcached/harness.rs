//! What the tests below share.

use dlock::LockManager;

// For tests that wait for the end of a request.
pub(crate) use crate::support::impatient::connect as hasty;
pub(crate) use crate::support::patient::{config, connect};

pub(crate) async fn holder(manager: &LockManager, key: &str) -> Option<String> {
    let lock = manager.inspect(key).await.expect("inspect")?;
    assert_eq!(lock.holders.len(), 1, "{lock:?}");
    Some(lock.holders[0].owner.clone())
}
