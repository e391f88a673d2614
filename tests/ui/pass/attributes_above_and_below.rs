//! Other attributes on the same function.

use async_trait::async_trait;
use dlock::{LockError, distributed_lock};
use tracing::instrument;

use crate::support::{ShopError, alone, held};

#[instrument]
#[distributed_lock(key = "above:<sku>")]
async fn instrument_above(sku: &str, quantity: u32) -> Result<u32, ShopError> {
    assert_eq!(held(), format!("above:{sku}"));
    Ok(quantity)
}

#[distributed_lock(key = "below:<sku>")]
#[instrument(skip(quantity), ret)]
async fn instrument_below(sku: &str, mut quantity: u32, _: NoDebug) -> Result<u32, ShopError> {
    assert_eq!(held(), format!("below:{sku}"));
    quantity += 1;
    Ok(quantity)
}

struct NoDebug;

#[async_trait]
trait Store {
    async fn above(&self, sku: &str) -> Result<String, ShopError>;
    async fn below(&self, sku: &str) -> Result<String, ShopError>;
}

struct Shop;

#[async_trait]
impl Store for Shop {
    #[instrument(skip(self))]
    #[distributed_lock(key = "above:<sku>")]
    async fn above(&self, sku: &str) -> Result<String, ShopError> {
        Ok(held() + sku)
    }

    #[distributed_lock(key = "below:<sku>")]
    #[instrument(skip(self))]
    async fn below(&self, sku: &str) -> Result<String, ShopError> {
        Ok(held() + sku)
    }
}

#[tokio::test]
async fn instrument_on_either_side() {
    alone(async {
        assert_eq!(instrument_above("mug", 1).await, Ok(1));
        assert_eq!(instrument_below("mug", 1, NoDebug).await, Ok(2));
        assert_eq!(Shop.above("mug").await.as_deref(), Ok("above:mugmug"));
        assert_eq!(Shop.below("mug").await.as_deref(), Ok("below:mugmug"));
    })
    .await;
}

#[distributed_lock(key = "test", on_error = |error| assert_not_initialized(&error))]
#[tokio::test]
async fn a_test_below() {
    panic!("there is no manager to lock with");
}

fn assert_not_initialized(error: &LockError) {
    assert!(matches!(error, LockError::NotInitialized { .. }), "{error}");
}
