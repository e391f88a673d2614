//! Keys that are expressions.

use dlock::{LockError, LockKey, distributed_lock};

use crate::support::{ShopError, alone, held};

const NAME: &str = "constant";

struct Order {
    id: u32,
    names: Vec<String>,
}

impl From<&Order> for LockKey {
    fn from(order: &Order) -> Self {
        format!("order:{}", order.id).into()
    }
}

#[distributed_lock(key = NAME)]
async fn constant() -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = format!("stock:{sku}"))]
async fn format_string(sku: &str) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = order)]
async fn own_conversion(order: &Order) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = order.names.clone())]
async fn list(order: Order) -> Result<u32, LockError> {
    assert_eq!(held(), "a + b");
    Ok(order.id)
}

#[distributed_lock(key = name)]
async fn consumed_by_the_key(name: String) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = ("a:", 3).0)]
async fn in_parentheses() -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = lookup(id).await?)]
async fn awaits_and_may_fail(id: u32) -> Result<String, ShopError> {
    Ok(held())
}

async fn lookup(id: u32) -> Result<String, ShopError> {
    tokio::task::yield_now().await;
    if id == 0 {
        Err(ShopError::BadNumber)
    } else {
        Ok(format!("looked up:{id}"))
    }
}

#[tokio::test]
async fn any_key() {
    alone(async {
        assert_eq!(constant().await.expect("free"), "constant");
        assert_eq!(format_string("mug").await.expect("free"), "stock:mug");
        let order = Order {
            id: 3,
            names: vec!["a".to_owned(), "b".to_owned()],
        };
        assert_eq!(own_conversion(&order).await.expect("free"), "order:3");
        assert_eq!(list(order).await.expect("free"), 3);
        assert_eq!(
            consumed_by_the_key("x".to_owned()).await.expect("free"),
            "x"
        );
        assert_eq!(in_parentheses().await.expect("free"), "a:");
        assert_eq!(awaits_and_may_fail(3).await.as_deref(), Ok("looked up:3"));
        assert_eq!(awaits_and_may_fail(0).await, Err(ShopError::BadNumber));
    })
    .await;
}
