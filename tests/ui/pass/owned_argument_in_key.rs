//! An argument in the key that the body consumes, or never mentions.

use dlock::distributed_lock;

use crate::support::{ShopError, alone, held};

struct Order {
    id: String,
    lines: Vec<u32>,
}

#[distributed_lock(key = "order:<order.id>")]
async fn moved(order: Order) -> Result<(String, usize), ShopError> {
    let Order { id, lines } = order;
    Ok((id, lines.len()))
}

#[distributed_lock(key = "order:<id>")]
async fn moved_whole(id: String) -> Result<String, ShopError> {
    Ok(id)
}

#[distributed_lock(key = "order:<id>:<quantity>")]
async fn in_the_key_only(id: String, mut quantity: u32) -> Result<String, ShopError> {
    quantity += 1;
    Ok(format!("{} {quantity}", held()))
}

#[distributed_lock(key = order.id.as_str())]
async fn borrowed_by_an_expression(order: Order) -> Result<Order, ShopError> {
    Ok(order)
}

/// A field, a method and a module of the same name are no use of the argument, which has moved.
#[distributed_lock(key = name)]
async fn consumed_beside_a_field_of_its_name(
    name: String,
    user: User,
) -> Result<String, ShopError> {
    Ok(user.name)
}

struct User {
    name: String,
}

/// The key has read the first value.
#[distributed_lock(key = "page:<cursor>")]
async fn assigned_before_it_is_read(mut cursor: u32) -> Result<u32, ShopError> {
    cursor = held().len().try_into().unwrap_or(cursor);
    Ok(cursor)
}

#[tokio::test]
async fn the_key_comes_first() {
    let order = || Order {
        id: "7".to_owned(),
        lines: vec![1, 2],
    };
    alone(async {
        let user = User {
            name: "Ada".to_owned(),
        };
        let name = consumed_beside_a_field_of_its_name("1".to_owned(), user).await;
        assert_eq!(name, Ok("Ada".to_owned()));
        assert_eq!(assigned_before_it_is_read(1).await, Ok(6));
        assert_eq!(moved(order()).await, Ok(("7".to_owned(), 2)));
        assert_eq!(moved_whole("7".to_owned()).await.as_deref(), Ok("7"));
        let shown = in_the_key_only("7".to_owned(), 1).await;
        assert_eq!(shown.as_deref(), Ok("order:7:1 2"));
        assert_eq!(
            borrowed_by_an_expression(order())
                .await
                .map(|order| order.id),
            Ok("7".to_owned())
        );
    })
    .await;
}
