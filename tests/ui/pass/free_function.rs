//! The example of the documentation.

use dlock::distributed_lock;

use crate::support::{ShopError, alone, held};

#[distributed_lock(key = "stock:<sku>", ttl = "30s", timeout = "2s")]
async fn deduct(sku: &str, quantity: u32) -> Result<u32, ShopError> {
    assert_eq!(held(), format!("stock:{sku}"));
    10_u32.checked_sub(quantity).ok_or(ShopError::SoldOut)
}

#[tokio::test]
async fn runs_under_its_lock() {
    assert_eq!(alone(deduct("mug", 3)).await, Ok(7));
    assert_eq!(alone(deduct("mug", 11)).await, Err(ShopError::SoldOut));
    assert!(dlock::current().is_none());
}

#[tokio::test]
async fn without_a_manager_the_body_does_not_run() {
    #[distributed_lock(key = "nobody")]
    async fn never() -> Result<(), ShopError> {
        panic!("ran without a lock")
    }

    assert_eq!(never().await, Err(ShopError::Locked));
}
