//! A function that calls itself: each call re-enters, or takes a lock of its own.

use dlock::distributed_lock;

use crate::support::{ShopError, alone, held};

#[distributed_lock(key = "same")]
async fn same_key(depth: u32) -> Result<u32, ShopError> {
    if depth == 0 {
        return Ok(0);
    }
    Ok(Box::pin(same_key(depth - 1)).await? + 1)
}

#[distributed_lock(key = "level:<depth>")]
async fn key_per_level(depth: u32) -> Result<String, ShopError> {
    let below = match depth.checked_sub(1) {
        Some(below) => Box::pin(key_per_level(below)).await?,
        None => String::new(),
    };
    Ok(format!("{} {below}", held()))
}

#[tokio::test]
async fn recursion_ends() {
    tokio::spawn(alone(async {
        assert_eq!(same_key(3).await, Ok(3));
        assert_eq!(
            key_per_level(2).await.as_deref(),
            Ok("level:2 level:1 level:0 ")
        );
    }))
    .await
    .expect("no panic");
}
