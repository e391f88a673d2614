//! Two locks on one function.

use dlock::{LockError, distributed_lock};

use crate::support::{alone, held};

#[distributed_lock(key = "inner:<id>")]
#[distributed_lock(key = "outer:<name>", try)]
async fn both(id: u32, mut name: String, _: Vec<u8>) -> Result<String, LockError> {
    name.push_str(&held());
    Ok(name)
}

#[distributed_lock(key = "a", try, on_error = |_| "no a")]
#[distributed_lock(key = "b", try, on_error = |_| "no b")]
async fn the_lower_is_taken_first() -> &'static str {
    "both"
}

#[tokio::test]
async fn both_are_held() {
    alone(async {
        assert_eq!(
            both(3, "a".to_owned(), Vec::new()).await.expect("free"),
            "ainner:3"
        );
        assert_eq!(the_lower_is_taken_first().await, "both");

        let _guard = dlock::lock(["a", "b", "outer:a"])
            .acquire()
            .await
            .expect("free");
        assert_eq!(the_lower_is_taken_first().await, "no b");
        let refused = both(3, "a".to_owned(), Vec::new()).await;
        assert!(
            matches!(refused, Err(LockError::Busy { .. })),
            "{refused:?}"
        );
    })
    .await;
}
