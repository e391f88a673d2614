//! What the attribute adds to the future.

#![allow(clippy::large_types_passed_by_value)]

use dlock::{LockError, distributed_lock};

async fn plain(input: [u8; 512]) -> Result<u32, LockError> {
    let buffer = [1_u8; 4096];
    tokio::task::yield_now().await;
    Ok(buffer.iter().chain(&input).copied().map(u32::from).sum())
}

#[distributed_lock(key = "size")]
async fn locked(input: [u8; 512]) -> Result<u32, LockError> {
    let buffer = [1_u8; 4096];
    tokio::task::yield_now().await;
    Ok(buffer.iter().chain(&input).copied().map(u32::from).sum())
}

/// Its key and its arguments borrow, across awaits, in a future that is `Send`.
#[distributed_lock(key = "send:<values.len()>:<name.as_ref()>")]
async fn borrowing<'a, T: AsRef<str> + Sync + ?Sized>(
    name: &'a T,
    values: &mut [String],
    each: &(dyn Fn(&str) -> bool + Sync),
) -> Result<&'a str, LockError> {
    for value in values.iter_mut().filter(|value| each(value)) {
        tokio::task::yield_now().await;
        value.push('!');
    }
    Ok(name.as_ref())
}

fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn near_the_size_of_the_body() {
    let (plain, locked) = (
        size_of_val(&plain([0; 512])),
        size_of_val(&locked([0; 512])),
    );
    // One more copy of the arguments, and what the runtime keeps beside the body.
    assert!(
        locked <= plain + 512 + 256,
        "{plain} bytes without, {locked} with the attribute"
    );
}

#[tokio::test]
async fn send_whatever_it_borrows() {
    let mut values = vec!["a".to_owned(), "b".to_owned()];
    let each = |value: &str| value == "b";
    let future = is_send(borrowing("name", &mut values, &each));
    assert_eq!(
        crate::support::alone(future).await.expect("it is free"),
        "name"
    );
    assert_eq!(values, ["a", "b!"]);
    assert_eq!(
        crate::support::alone(locked([0; 512]))
            .await
            .expect("it is free"),
        4096
    );
}
