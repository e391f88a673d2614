//! Ways for a body to end.

use dlock::{LockError, distributed_lock};

use crate::support::{ShopError, alone};

#[distributed_lock(key = "a")]
async fn question_mark(text: &str) -> Result<u32, ShopError> {
    let number: u32 = text.parse()?;
    Ok(number)
}

#[distributed_lock(key = "a")]
async fn early_return(number: u32) -> Result<u32, ShopError> {
    if number == 0 {
        return Err(ShopError::SoldOut);
    }
    for candidate in 0.. {
        if candidate == number {
            return Ok(candidate);
        }
    }
    Err(ShopError::BadNumber)
}

#[distributed_lock(key = "a")]
async fn let_else(text: Option<&str>) -> Result<usize, ShopError> {
    let Some(text) = text else {
        return Err(ShopError::SoldOut);
    };
    Ok(text.len())
}

// On one line, where superfluous braces would be told.
#[rustfmt::skip]
#[distributed_lock(key = "a")]
async fn one_expression() -> Result<u32, ShopError> { Ok(7) }

#[distributed_lock(key = "a")]
async fn diverging() -> Result<u32, ShopError> {
    panic!("at once")
}

#[distributed_lock(key = "a")]
async fn endless() -> Result<u32, ShopError> {
    loop {
        tokio::task::yield_now().await;
    }
}

#[distributed_lock(key = "a")]
async fn unfinished(_number: u32) -> Result<u32, ShopError> {
    todo!()
}

#[distributed_lock(key = "a")]
async fn items_inside() -> Result<u32, ShopError> {
    const OPTIONS: u32 = 3;
    fn key(number: u32) -> u32 {
        number + OPTIONS
    }
    let body = key(1);
    Ok(body)
}

#[distributed_lock(key = "<cell>", on_error = |error| panic!("{error}"))]
async fn borrows_to_the_last(cell: String, lock: std::sync::Mutex<u32>) -> u32 {
    assert_eq!(cell, "cell");
    *lock
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[distributed_lock(key = "a", on_error = |error| panic!("{error}"))]
async fn nothing() {}

#[distributed_lock(key = "a")]
async fn labels_and_closures(values: &[u32]) -> Result<Vec<u32>, ShopError> {
    let add = |a: u32| move |b: u32| a + b;
    'outer: {
        for value in values {
            if *value == 2 {
                break 'outer;
            }
        }
        return Err(ShopError::SoldOut);
    }
    Ok(values.iter().copied().map(add(1)).collect())
}

#[tokio::test]
async fn bodies_end_as_without_the_attribute() {
    alone(async {
        assert_eq!(question_mark("12").await, Ok(12));
        assert_eq!(question_mark("x").await, Err(ShopError::BadNumber));
        assert_eq!(early_return(0).await, Err(ShopError::SoldOut));
        assert_eq!(early_return(2).await, Ok(2));
        assert_eq!(let_else(None).await, Err(ShopError::SoldOut));
        assert_eq!(let_else(Some("ab")).await, Ok(2));
        assert_eq!(one_expression().await, Ok(7));
        assert_eq!(items_inside().await, Ok(4));
        assert_eq!(borrows_to_the_last("cell".to_owned(), 3.into()).await, 3);
        assert_eq!(labels_and_closures(&[1, 2]).await, Ok(vec![2, 3]));
        nothing().await;
    })
    .await;
}

#[tokio::test]
#[should_panic(expected = "at once")]
async fn a_panic_stays_one() {
    let _ = alone(diverging()).await;
}

#[tokio::test]
#[should_panic(expected = "not yet implemented")]
async fn a_body_to_do() {
    let _ = alone(unfinished(1)).await;
}

#[tokio::test]
async fn a_dropped_body_gives_the_lock_back() {
    alone(async {
        let timeout = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(timeout, endless()).await.is_err());
        assert_eq!(one_expression().await, Ok(7));
    })
    .await;
}

#[distributed_lock(key = "a")]
async fn the_error_of_the_runtime() -> Result<(), LockError> {
    Err(dlock::Config::from_url("nonsense").expect_err("no such store"))
}

#[tokio::test]
async fn an_error_of_the_body_is_passed_on() {
    assert!(matches!(
        alone(the_error_of_the_runtime()).await,
        Err(LockError::Config { .. })
    ));
}
