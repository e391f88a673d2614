//! `impl Trait` for arguments and in what is returned; boxed trait objects.

use std::error::Error;
use std::fmt::Display;

use dlock::{LockError, distributed_lock};

use crate::support::{ShopError, alone, held};

#[distributed_lock(key = "in:<id>")]
async fn argument(id: impl Display + Copy) -> Result<String, ShopError> {
    Ok(format!("{id} {}", held()))
}

#[distributed_lock(key = "out")]
async fn in_result(upto: u32) -> Result<impl Iterator<Item = u32> + Send, ShopError> {
    if upto == 0 {
        return Err(ShopError::SoldOut);
    }
    Ok((0..upto).map(|number| number * 2))
}

#[distributed_lock(key = "out", on_error = |_| 0..0)]
async fn alone_with_on_error(upto: u32) -> impl Iterator<Item = u32> {
    0..upto
}

#[distributed_lock(key = "box")]
async fn boxed_object(word: bool) -> Result<Box<dyn Display + Send>, ShopError> {
    if word {
        return Ok(Box::new("word"));
    }
    Ok(Box::new(3))
}

#[distributed_lock(key = "box")]
async fn boxed_error(text: &str) -> Result<u32, Box<dyn Error + Send + Sync>> {
    if text.is_empty() {
        Err("empty")?;
    }
    Ok(text.parse()?)
}

#[tokio::test]
async fn opaque_and_boxed_types() {
    alone(async {
        assert_eq!(argument(3).await.as_deref(), Ok("3 in:3"));
        let numbers: Vec<_> = in_result(3).await.expect("free").collect();
        assert_eq!(numbers, [0, 2, 4]);
        assert!(in_result(0).await.is_err());
        assert_eq!(alone_with_on_error(3).await.count(), 3);
        assert_eq!(boxed_object(true).await.expect("free").to_string(), "word");
        assert_eq!(boxed_object(false).await.expect("free").to_string(), "3");
        assert_eq!(boxed_error("3").await.expect("a number"), 3);
        assert_eq!(
            boxed_error("").await.expect_err("empty").to_string(),
            "empty"
        );
    })
    .await;
    let refused = boxed_error("3").await.expect_err("there is no manager");
    assert!(refused.downcast_ref::<LockError>().is_some(), "{refused}");
}
