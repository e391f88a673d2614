//! Return types that are a `Result`, whatever they are called.

use dlock::{LockError, distributed_lock};

use crate::support::{ShopError, alone};

type Result<T> = std::result::Result<T, ShopError>;
type Count = Result<u32>;
type Outcome<E> = std::result::Result<(), E>;

#[distributed_lock(key = "a")]
async fn alias() -> Result<u32> {
    Ok(1)
}

#[distributed_lock(key = "a")]
async fn alias_without_parameters() -> Count {
    Err(ShopError::SoldOut)
}

#[distributed_lock(key = "a")]
async fn alias_of_the_error() -> Outcome<LockError> {
    Ok(())
}

#[distributed_lock(key = "a")]
async fn full_path() -> std::result::Result<u32, LockError> {
    Ok(2)
}

#[distributed_lock(key = "a")]
async fn of_a_parameter<E: From<LockError>>(value: E) -> std::result::Result<(), E> {
    Err(value)
}

trait Job {
    type Report;

    async fn run(&self) -> Self::Report;
}

struct Nightly;

impl Job for Nightly {
    type Report = Result<&'static str>;

    #[distributed_lock(key = "nightly")]
    async fn run(&self) -> Self::Report {
        Ok("done")
    }
}

#[tokio::test]
async fn all_are_results() {
    alone(async {
        assert_eq!(alias().await, Ok(1));
        assert_eq!(alias_without_parameters().await, Err(ShopError::SoldOut));
        assert!(alias_of_the_error().await.is_ok());
        assert!(matches!(full_path().await, Ok(2)));
        assert_eq!(
            of_a_parameter(ShopError::SoldOut).await,
            Err(ShopError::SoldOut)
        );
        assert_eq!(Nightly.run().await, Ok("done"));
    })
    .await;
}
