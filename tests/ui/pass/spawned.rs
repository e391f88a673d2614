//! Annotated functions in tasks of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock::{LockScopeExt as _, distributed_lock};
use tokio::task::JoinSet;

use crate::support::{ShopError, alone};

#[distributed_lock(key = "count:<name>")]
async fn count(name: String, inside: Arc<AtomicU32>) -> Result<(), ShopError> {
    assert_eq!(
        inside.fetch_add(1, Ordering::SeqCst),
        0,
        "two bodies at once"
    );
    tokio::task::yield_now().await;
    inside.fetch_sub(1, Ordering::SeqCst);
    drop(name);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_body_at_a_time() {
    alone(async {
        let inside = Arc::<AtomicU32>::default();
        let mut tasks = JoinSet::new();
        for _ in 0..8 {
            tasks.spawn(count("one".to_owned(), Arc::clone(&inside)).in_lock_scope());
        }
        while let Some(ended) = tasks.join_next().await {
            assert_eq!(ended.expect("no panic"), Ok(()));
        }
    })
    .await;
}
