//! Methods, with every kind of receiver.

use std::pin::Pin;
use std::sync::Arc;

use dlock::{LockError, distributed_lock};

use crate::support::{ShopError, alone, held};

#[derive(Clone, Default)]
struct Shop {
    name: String,
    stock: Vec<u32>,
}

impl Shop {
    #[distributed_lock(key = "new:<name>", on_error = |error| panic!("{error}"))]
    async fn new(name: &str) -> Self {
        assert_eq!(held(), format!("new:{name}"));
        Self {
            name: name.to_owned(),
            stock: vec![1],
        }
    }

    #[distributed_lock(key = "copy:<self.name>")]
    async fn copy(&self) -> Result<Self, ShopError> {
        Ok(self.clone())
    }

    #[distributed_lock(key = "shop:<self.name>:<at>")]
    async fn by_reference(&self, at: usize) -> Result<&u32, ShopError> {
        self.stock.get(at).ok_or(ShopError::SoldOut)
    }

    #[distributed_lock(key = "shop:<self.name>")]
    async fn by_mutable_reference(&mut self, at: usize) -> Result<&mut u32, ShopError> {
        self.stock.push(3);
        tokio::task::yield_now().await;
        self.stock.get_mut(at).ok_or(ShopError::SoldOut)
    }

    #[distributed_lock(key = "shop:<self.name>")]
    async fn by_value(self) -> Result<String, ShopError> {
        Ok(self.name)
    }

    #[distributed_lock(key = "shop:<self.name>")]
    async fn by_mutable_value(mut self) -> Result<Self, ShopError> {
        self.stock.clear();
        Ok(self)
    }

    #[distributed_lock(key = "shop:<self.name>")]
    async fn unmentioned(self) -> Result<String, ShopError> {
        Ok(held())
    }

    #[distributed_lock(key = "shop:<self.name>")]
    async fn shared(self: Arc<Self>) -> Result<Arc<Self>, ShopError> {
        Ok(self)
    }

    #[distributed_lock(key = "shop:<self.name>")]
    async fn pinned(self: Pin<&mut Self>) -> Result<usize, ShopError> {
        Ok(self.stock.len())
    }

    #[distributed_lock(key = self.key())]
    async fn key_of_a_method(&self) -> Result<String, LockError> {
        Ok(held())
    }

    fn key(&self) -> String {
        format!("key:{}", self.name)
    }
}

#[tokio::test]
async fn every_receiver() {
    alone(async {
        let mut shop = Shop::new("eu").await;
        assert_eq!(shop.copy().await.expect("free").name, "eu");
        assert_eq!(shop.by_reference(0).await, Ok(&1));
        *shop.by_mutable_reference(1).await.expect("pushed") += 1;
        assert_eq!(shop.stock, [1, 4]);
        assert_eq!(Pin::new(&mut shop).pinned().await, Ok(2));
        assert_eq!(shop.key_of_a_method().await.expect("free"), "key:eu");
        let shared = Arc::new(shop).shared().await.expect("free");
        let shop = Arc::unwrap_or_clone(shared);
        let shop = shop.by_mutable_value().await.expect("free");
        assert!(shop.stock.is_empty());
        assert_eq!(shop.clone().unmentioned().await.as_deref(), Ok("shop:eu"));
        assert_eq!(shop.by_value().await.as_deref(), Ok("eu"));
    })
    .await;
}
