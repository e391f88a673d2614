//! Traits with `async fn`, without any macro.

use std::fmt::Display;
use std::future::Future;

use dlock::distributed_lock;

use crate::support::{ShopError, alone, held};

trait Store<T: Display> {
    const KIND: &'static str;

    async fn get(&self, id: T) -> Result<String, ShopError>;
    async fn set(&mut self, id: &T) -> Result<&mut u32, ShopError>;

    #[distributed_lock(key = "<Self::KIND>:<id>")]
    async fn default_body<'a>(&self, id: &'a T) -> Result<(&'a T, String), ShopError> {
        Ok((id, held()))
    }
}

trait Close {
    fn close(&self) -> impl Future<Output = Result<String, ShopError>> + Send;
}

impl Close for Shop {
    #[distributed_lock(key = "close:<self.0>")]
    async fn close(&self) -> Result<String, ShopError> {
        Ok(held())
    }
}

struct Shop(u32);

impl<T: Display> Store<T> for Shop {
    const KIND: &'static str = "shop";

    #[distributed_lock(key = "get:<self.0>:<id>")]
    async fn get(&self, id: T) -> Result<String, ShopError> {
        Ok(format!("{id} {}", held()))
    }

    #[distributed_lock(key = "set:<id>")]
    async fn set(&mut self, id: &T) -> Result<&mut u32, ShopError> {
        assert_eq!(held(), format!("set:{id}"));
        Ok(&mut self.0)
    }
}

#[tokio::test]
async fn methods_of_a_trait() {
    alone(async {
        let mut shop = Shop(3);
        assert_eq!(shop.get("mug").await.as_deref(), Ok("mug get:3:mug"));
        *shop.set(&1).await.expect("free") += 1;
        assert_eq!(shop.default_body(&1).await, Ok((&1, "shop:1".to_owned())));
        assert_eq!(shop.0, 4);
        assert_eq!(shop.close().await.as_deref(), Ok("close:4"));
    })
    .await;
}
