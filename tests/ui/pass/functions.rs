//! Functions: as in the documentation, with what may stand around their body, boxed by
//! hand, recursive, and in tasks of their own.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock::{LockScopeExt as _, distributed_lock};
use tokio::task::JoinSet;

use crate::support::{ShopError, alone, held};

#[distributed_lock(key = "stock:<sku>", ttl = "30s", timeout = "2s")]
async fn deduct(sku: &str, quantity: u32) -> Result<u32, ShopError> {
    assert_eq!(held(), format!("stock:{sku}"));
    10_u32.checked_sub(quantity).ok_or(ShopError::SoldOut)
}

#[tokio::test]
async fn run_under_their_lock() {
    assert_eq!(alone(deduct("mug", 3)).await, Ok(7));
    assert_eq!(alone(deduct("mug", 11)).await, Err(ShopError::SoldOut));
    assert!(dlock::current().is_none());
}

#[distributed_lock(key = "nobody")]
async fn never() -> Result<(), ShopError> {
    panic!("ran without a lock")
}

#[tokio::test]
async fn do_not_run_without_a_manager() {
    assert_eq!(never().await, Err(ShopError::Locked));
}

#[distributed_lock(key = "inner")]
async fn inner_attributes(unused: String, mut number: u32) -> Result<u32, ShopError> {
    #![allow(unused_variables, unused_mut)]
    //! Documentation, too.
    let also_unused = 3;
    Ok(number)
}

/// # Safety
///
/// `pointer` must point to a number.
#[distributed_lock(key = "unsafe")]
pub(crate) async unsafe fn read(pointer: &*const u32) -> Result<u32, ShopError> {
    Ok(unsafe { **pointer })
}

#[tokio::test]
async fn keep_what_stands_around_their_body() {
    assert_eq!(alone(inner_attributes(String::new(), 3)).await, Ok(3));
    let number = 3;
    let pointer = &raw const number;
    let read = async { unsafe { read(&pointer) }.await };
    assert_eq!(alone(read).await, Ok(3));
}

/// In the form of `#[async_trait]`.
#[distributed_lock(key = "boxed:<sku>")]
fn boxed<'a>(
    sku: &'a str,
    quantity: u32,
) -> Pin<Box<dyn Future<Output = Result<String, ShopError>> + Send + 'a>> {
    Box::pin(async move {
        let digits: u32 = "1".parse()?;
        Ok(format!("{} {sku} {}", held(), quantity + digits))
    })
}

#[tokio::test]
async fn may_be_boxed_by_hand() {
    let shown = alone(boxed("mug", 2)).await;
    assert_eq!(shown.as_deref(), Ok("boxed:mug mug 3"));
}

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

/// Each call re-enters, or takes a lock of its own.
#[tokio::test]
async fn may_call_themselves() {
    let calls = tokio::spawn(alone(async {
        assert_eq!(same_key(3).await, Ok(3));
        let levels = key_per_level(2).await;
        assert_eq!(levels.as_deref(), Ok("level:2 level:1 level:0 "));
    }));
    calls.await.expect("no panic");
}

#[distributed_lock(key = "count:<name>")]
async fn count(name: String, inside: Arc<AtomicU32>) -> Result<(), ShopError> {
    let before = inside.fetch_add(1, Ordering::SeqCst);
    assert_eq!(before, 0, "two bodies at once");
    tokio::task::yield_now().await;
    inside.fetch_sub(1, Ordering::SeqCst);
    drop(name);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_one_at_a_time_in_tasks_of_their_own() {
    alone(async {
        let inside = Arc::<AtomicU32>::default();
        let mut tasks = JoinSet::new();
        for _ in 0..8 {
            tasks.spawn(count("one".to_owned(), Arc::clone(&inside)).in_lock_scope());
        }
        for ended in tasks.join_all().await {
            assert_eq!(ended, Ok(()));
        }
    })
    .await;
}
