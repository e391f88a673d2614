//! `dlock` under another name.

extern crate dlock as other;

use crate::support::{ShopError, alone, held};

mod facade {
    pub mod locks {
        pub use dlock::__private;
        pub use dlock::*;
    }
}

#[other::distributed_lock(key = "renamed:<id>", ttl = "1s", mode = "read", crate = other)]
async fn renamed(id: u32) -> Result<String, ShopError> {
    Ok(held())
}

#[facade::locks::distributed_lock(
    key = ["a:<id>", "b"],
    timeout = "1s",
    crate = crate::cases::renamed_crate::facade::locks
)]
async fn in_a_module(id: u32) -> Result<String, ShopError> {
    Ok(held())
}

#[tokio::test]
async fn where_the_argument_says() {
    alone(async {
        assert_eq!(renamed(3).await.as_deref(), Ok("renamed:3"));
        assert_eq!(in_a_module(3).await.as_deref(), Ok("a:3 + b"));
    })
    .await;
}
