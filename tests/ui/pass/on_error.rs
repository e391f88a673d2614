//! Return values made of the error.

use std::sync::atomic::{AtomicU32, Ordering};

use dlock::{LockError, distributed_lock};

use crate::support::{alone, held};

#[distributed_lock(key = "job", try, on_error = |error: LockError| matches!(error, LockError::Busy { .. }))]
async fn closure() -> bool {
    false
}

#[distributed_lock(key = "job", try, on_error = describe)]
async fn function() -> String {
    held()
}

fn describe(error: impl Into<LockError>) -> String {
    error.into().to_string()
}

#[distributed_lock(key = "job:<name>", try, on_error = |error| format!("{name}: {error}"))]
async fn mentions_an_argument(name: &str, number: u32) -> String {
    format!("{number} {}", held())
}

#[distributed_lock(key = "job", try, on_error = |_| None)]
async fn option(value: u32) -> Option<u32> {
    let value = value.checked_add(1)?;
    Some(value)
}

#[distributed_lock(key = "job", try, on_error = |_| Err("busy"))]
async fn result_of_another_error(value: &str) -> Result<u32, &'static str> {
    value.parse().map_err(|_| "no number")
}

#[distributed_lock(key = "job", try, on_error = |error| Err(std::io::Error::other(error)))]
async fn error_type_of_another_crate() -> std::io::Result<u32> {
    Ok(1)
}

#[distributed_lock(key = "job", try, on_error = |error| tracing::info!("not this time: {error}"))]
async fn unit() {
    assert_eq!(held(), "job");
}

/// A task that goes on after the lock.
#[distributed_lock(key = "worker", on_error = |error| tokio::spawn(async move { error.to_string() }))]
async fn future_of_its_own() -> tokio::task::JoinHandle<String> {
    tokio::spawn(std::future::ready(held()))
}

#[distributed_lock(key = "job", try, on_error = { let prefix = "never"; move |_| prefix.to_owned() })]
async fn block() -> String {
    held()
}

#[distributed_lock(key = "job", try, on_error = { COUNT.fetch_add(1, Ordering::SeqCst); |_| 0 })]
async fn evaluated_when_needed() -> u32 {
    COUNT.load(Ordering::SeqCst)
}

static COUNT: AtomicU32 = AtomicU32::new(0);

#[distributed_lock(key = "job", try, on_error = |error| panic!("{error}"))]
async fn never() -> ! {
    panic!("the body")
}

#[tokio::test]
#[should_panic(expected = "the body")]
async fn of_a_function_that_never_returns() {
    alone(never()).await;
}

#[tokio::test]
async fn only_when_the_lock_was_not_had() {
    alone(async {
        assert!(!closure().await);
        assert_eq!(function().await, "job");
        assert_eq!(option(1).await, Some(2));
        assert_eq!(result_of_another_error("3").await, Ok(3));
        assert_eq!(error_type_of_another_crate().await.ok(), Some(1));
        assert_eq!(mentions_an_argument("a", 1).await, "1 job:a");
        assert_eq!(block().await, "job");
        let told = future_of_its_own().await.await;
        assert_eq!(told.expect("no panic"), "worker");
        unit().await;
        assert_eq!(evaluated_when_needed().await, 0);

        let _guard = dlock::lock(["job", "job:a"]).acquire().await.expect("free");
        assert!(closure().await);
        assert!(function().await.contains("held by somebody else"));
        assert_eq!(option(1).await, None);
        assert_eq!(result_of_another_error("3").await, Err("busy"));
        let error = error_type_of_another_crate().await.expect_err("held");
        let error = error.get_ref().expect("it was made from one");
        assert!(error.is::<LockError>());
        assert!(mentions_an_argument("a", 1).await.starts_with("a: lock"));
        assert_eq!(block().await, "never");
        unit().await;
    })
    .await;
}
