//! What the cases share.

use dlock::{Config, LockError, LockManager};

/// Runs `future` with locks that no other test sees.
pub async fn alone<F: std::future::Future>(future: F) -> F::Output {
    let manager = LockManager::connect(Config::default())
        .await
        .expect("memory connects");
    manager.scope(future).await
}

/// The key under which the caller runs.
pub fn held() -> String {
    dlock::current()
        .expect("the body runs under its lock")
        .key()
        .to_string()
}

/// An error of a service, as its author writes it.
#[derive(Debug, PartialEq)]
pub enum ShopError {
    Locked,
    SoldOut,
    BadNumber,
}

impl From<LockError> for ShopError {
    fn from(_: LockError) -> Self {
        Self::Locked
    }
}

impl From<std::num::ParseIntError> for ShopError {
    fn from(_: std::num::ParseIntError) -> Self {
        Self::BadNumber
    }
}
