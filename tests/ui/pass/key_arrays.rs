//! Several keys as one.

use dlock::{LockError, distributed_lock};

use crate::support::{alone, held};

#[distributed_lock(key = ["account:<from>", "account:<to>"])]
async fn transfer(from: u32, to: u32) -> Result<String, LockError> {
    Ok(format!("{from} {to} {}", held()))
}

#[distributed_lock(key = ["audit", audit_name(from), String::from("x"), "<from>"])]
async fn mixed(from: &str) -> Result<String, LockError> {
    Ok(held())
}

#[distributed_lock(key = [first, second.as_str()])]
async fn expressions(first: &str, second: String) -> Result<String, LockError> {
    Ok(format!("{second} {}", held()))
}

#[distributed_lock(key = ["alone"])]
async fn single() -> Result<String, LockError> {
    Ok(held())
}

fn audit_name(name: &str) -> Box<str> {
    format!("audit:{name}").into()
}

#[tokio::test]
async fn all_or_nothing() {
    alone(async {
        assert_eq!(
            transfer(7, 3).await.expect("free"),
            "7 3 account:7 + account:3"
        );
        assert_eq!(mixed("a").await.expect("free"), "audit + audit:a + x + a");
        assert_eq!(
            expressions("a", "b".to_owned()).await.expect("free"),
            "b a + b"
        );
        assert_eq!(single().await.expect("free"), "alone");
    })
    .await;
}
