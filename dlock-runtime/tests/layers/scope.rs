use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_runtime::{LockScopeExt, current, lock};
use tokio::time::timeout;

use crate::support::locks::{has_no_manager, held};
use crate::{connect, manager, seconds as s};

/// The global manager is not there, as in a test of a service.
#[tokio::test(start_paused = true)]
async fn a_spawned_task_that_left_its_manager_is_told_how_to_keep_it() {
    let (_, manager) = manager().await;
    let child = || lock("k").run(async {});
    let body = async {
        let error = has_no_manager(tokio::spawn(child()).await.expect("ends"));
        assert!(error.to_string().contains("`in_lock_scope()`"), "{error}");
        let kept = tokio::spawn(child().in_lock_scope()).await;
        kept.expect("ends").expect("free");
    };
    manager.scope(body).await;
}

#[tokio::test(start_paused = true)]
async fn several_keys_reenter_those_that_are_held() {
    let (_, manager) = manager().await;
    let body = async {
        let outer = current().expect("inside").token();
        let both = lock(["b", "a"]).run(async { current().expect("inside").tokens() });
        let both = both.await.expect("b is free");
        assert_eq!(both.len(), 2);
        assert_eq!(both[1], outer, "the second as written is the one held");
    };
    manager.scope(lock("a").run(body)).await.expect("free");
    assert!(manager.list("").await.expect("answers").is_empty());
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_key_rise_through_reentry() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let body = async {
        let guard = held(there.lock("b")).await;
        let seen = guard.token();
        guard.release().await.unwrap();
        let inner = lock("b").run(async { current().unwrap().token() });
        let both = lock(["a", "b"]).run(async { inner.await.unwrap() });
        (seen, both.await.unwrap())
    };
    let (seen, now) = here.scope(lock("a").run(body)).await.unwrap();
    assert!(now > seen, "fencing of b: {now} after {seen}");
}

#[tokio::test(start_paused = true)]
async fn destructors_of_a_cancelled_body_are_inside_its_scope() {
    struct D(Arc<AtomicUsize>);
    impl Drop for D {
        fn drop(&mut self) {
            if current().is_some() {
                self.0.store(1, Ordering::SeqCst);
            }
        }
    }
    let seen = Arc::new(AtomicUsize::new(0));
    let (_memory, here) = manager().await;
    let owned = D(seen.clone());
    let hang = async move {
        let _owned = owned;
        std::future::pending::<()>().await
    };
    let _ = timeout(s(1), here.lock("k").run(hang)).await;
    // The lock is still held then.
    assert_eq!(seen.load(Ordering::SeqCst), 1, "`current()` is None");
}
