//! Methods of traits under `#[async_trait]`, which arrive as `Box::pin(…)`.

use std::fmt::Display;
use std::sync::Arc;

use async_trait::async_trait;
use dlock::{LockError, distributed_lock};

use crate::support::{ShopError, alone, held};

#[async_trait]
trait Store {
    async fn get(&self, sku: &str) -> Result<String, ShopError>;
    async fn set(&mut self, sku: String, quantity: u32) -> Result<u32, ShopError>;
    async fn close(self: Box<Self>) -> Result<String, ShopError>;
    async fn shared(self: Arc<Self>, mut count: u32, _: String) -> Result<u32, ShopError>;
    #[distributed_lock(key = "ping:<self.name()>")]
    async fn ping(&self) -> Result<String, LockError> {
        Ok(held() + self.name())
    }

    #[distributed_lock(key = "nothing", on_error = |_| ())]
    async fn nothing(&self) {
        assert_eq!(held(), "nothing");
    }

    fn name(&self) -> &str;
}

#[async_trait]
trait Show {
    async fn show<T: Display + Send + Sync>(&self, value: T, [a, b]: [u8; 2]) -> Option<String>
    where
        T: 'static;
}

struct Shop {
    name: String,
    quantity: u32,
}

#[async_trait]
impl Store for Shop {
    #[distributed_lock(key = "<self.name>:<sku>")]
    async fn get(&self, sku: &str) -> Result<String, ShopError> {
        tokio::task::yield_now().await;
        Ok(format!("{} {sku} {}", held(), self.quantity))
    }

    #[distributed_lock(key = "<self.name>:<sku>")]
    async fn set(&mut self, sku: String, quantity: u32) -> Result<u32, ShopError> {
        assert_eq!(held(), format!("{}:{sku}", self.name));
        drop(sku);
        if quantity == 0 {
            return Err(ShopError::SoldOut);
        }
        let digits: u32 = "1".parse()?;
        self.quantity = quantity;
        Ok(self.quantity + digits)
    }

    #[distributed_lock(key = "<self.name>")]
    async fn close(self: Box<Self>) -> Result<String, ShopError> {
        Ok(self.name)
    }

    #[distributed_lock(key = "<self.name>:<count>")]
    async fn shared(self: Arc<Self>, mut count: u32, _: String) -> Result<u32, ShopError> {
        count += self.quantity;
        Ok(count)
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[async_trait]
impl Show for Shop {
    #[distributed_lock(key = "<value>", on_error = |_| None)]
    async fn show<T: Display + Send + Sync>(&self, value: T, [a, b]: [u8; 2]) -> Option<String>
    where
        T: 'static,
    {
        Some(format!("{} {value} {}", held(), a + b))
    }
}

fn shop() -> Shop {
    Shop {
        name: "eu".to_owned(),
        quantity: 1,
    }
}

#[tokio::test]
async fn methods_lock_what_their_keys_say() {
    alone(async {
        let mut shop = shop();
        assert_eq!(shop.get("mug").await.as_deref(), Ok("eu:mug mug 1"));
        assert_eq!(shop.set("mug".to_owned(), 4).await, Ok(5));
        assert_eq!(shop.set("mug".to_owned(), 0).await, Err(ShopError::SoldOut));
        assert_eq!(shop.ping().await.expect("it is free"), "ping:eueu");
        assert_eq!(shop.show(7, [1, 2]).await.as_deref(), Some("7 7 3"));
        shop.nothing().await;
        assert_eq!(Arc::new(shop).shared(1, String::new()).await, Ok(5));
        assert_eq!(Box::new(self::shop()).close().await.as_deref(), Ok("eu"));
    })
    .await;
}

#[tokio::test]
async fn through_a_trait_object_and_another_task() {
    let store: Arc<dyn Store + Send + Sync> = Arc::new(shop());
    let task = tokio::spawn(alone(async move { store.get("mug").await }));
    assert_eq!(task.await.expect("no panic").as_deref(), Ok("eu:mug mug 1"));
}

mod local {
    use std::rc::Rc;

    use async_trait::async_trait;
    use dlock::distributed_lock;

    use crate::support::{ShopError, alone, held};

    #[async_trait(?Send)]
    trait Local {
        async fn count(&self, value: Rc<u32>) -> Result<String, ShopError>;
    }

    struct Here;

    #[async_trait(?Send)]
    impl Local for Here {
        #[distributed_lock(key = "local:<value>")]
        async fn count(&self, value: Rc<u32>) -> Result<String, ShopError> {
            Ok(held())
        }
    }

    #[tokio::test]
    async fn without_send() {
        assert_eq!(
            alone(Here.count(Rc::new(3))).await.as_deref(),
            Ok("local:3")
        );
    }
}
