//! A shop that sells, and imports its stock in batches.

pub use crate::usual::*;

/// What can go wrong in the shop.
#[derive(Debug)]
pub enum ShopError {
    /// The lock was not had, or was lost.
    Lock(LockError),
    /// Nothing is left.
    SoldOut,
}

impl From<LockError> for ShopError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

/// Where the pieces are.
pub mod warehouse {
    /// Takes so many pieces out, and says how many are left.
    ///
    /// # Errors
    ///
    /// None.
    pub async fn take(_sku: &str, quantity: u32) -> Result<u32, super::ShopError> {
        Ok(100 - quantity)
    }
}
