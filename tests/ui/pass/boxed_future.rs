//! A function that boxes its future by hand, in the form of `#[async_trait]`.

use std::future::Future;
use std::pin::Pin;

use dlock::distributed_lock;

use crate::support::{ShopError, alone, held};

#[distributed_lock(key = "boxed:<sku>")]
fn deduct<'a>(
    sku: &'a str,
    quantity: u32,
) -> Pin<Box<dyn Future<Output = Result<String, ShopError>> + Send + 'a>> {
    Box::pin(async move {
        let digits: u32 = "1".parse()?;
        Ok(format!("{} {sku} {}", held(), quantity + digits))
    })
}

#[tokio::test]
async fn runs_under_its_lock() {
    assert_eq!(
        alone(deduct("mug", 2)).await.as_deref(),
        Ok("boxed:mug mug 3")
    );
}
