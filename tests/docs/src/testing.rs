//! A stock that sells one piece at a time.

pub use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use crate::readme::ShopError;
pub use crate::usual::*;

/// Some pieces of one article.
pub struct Stock(AtomicU32);

impl Stock {
    /// A stock of so many pieces.
    #[must_use]
    pub fn of(pieces: u32) -> Self {
        Self(AtomicU32::new(pieces))
    }

    /// How many pieces are left.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.0.load(Relaxed)
    }

    /// Reads, lets others run, and writes: without a lock, sales get lost.
    ///
    /// # Errors
    ///
    /// Nothing is left.
    pub async fn take_one(&self, _sku: &str) -> Result<u32, ShopError> {
        let left = self.left().checked_sub(1).ok_or(ShopError::SoldOut)?;
        tokio::task::yield_now().await;
        self.0.store(left, Relaxed);
        Ok(left)
    }
}
