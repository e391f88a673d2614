use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_runtime::{LockScopeExt, OnLost, current, lock};
use tokio::time::{sleep, timeout};

use crate::support::locks::{had, has_no_manager, held, would_deadlock};
use crate::{connect, manager, seconds as s, settle};

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

/// It would wait for itself, but only while it holds the lock for reading.
#[tokio::test(start_paused = true)]
async fn a_reader_that_wants_to_write_is_refused_while_it_reads() {
    let (memory, here) = manager().await;
    let write = || timeout(s(3600), lock("k").run(async {}));
    let body = async {
        let refused = write().await;
        would_deadlock(refused.expect("at once"));
        memory.faults().take_away("k");
        current().expect("inside").lost().await;
        write().await.expect("not for itself").expect("it is free");
    };
    let reads = lock("k").read().on_lost(OnLost::Continue).run(body);
    here.scope(reads).await.expect("free");

    // What it took along does not read any more.
    let taken_along = async || {
        let write = lock("k").run(async {});
        let later = async move {
            settle().await;
            timeout(s(3600), write).await
        };
        tokio::spawn(later.in_lock_scope())
    };
    let wrote = here.scope(lock("k").read().run(taken_along())).await;
    let wrote = wrote.expect("free");
    let wrote = wrote.await.expect("no panic").expect("not for itself");
    wrote.expect("it is free");
    had(&here, "k").await;
}

/// The lease is the same, and another task holds it.
#[tokio::test(start_paused = true)]
async fn what_was_handed_over_is_not_held_by_the_body_before() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    // Both wait when the grant comes, so that it is for both.
    let start = held(there.lock("k")).await;
    let inside = || async { current().expect("inside") };
    let first = tokio::spawn(here.lock("k").run(inside()));
    settle().await;
    let second = here.lock("k").run(async move {
        let inside = inside().await;
        sleep(s(60)).await;
        inside
    });
    let second = tokio::spawn(second);
    settle().await;
    start.release().await.expect("held");
    let first = first.await.expect("no panic").expect("its turn");
    settle().await;
    assert!(here.inspect("k").await.expect("answers").is_some());
    assert!(!first.is_held());
    assert_eq!(first.deadline(), None);
    let second = second.await.expect("no panic").expect("its turn");
    let (first, second) = (u64::from(first.token()), u64::from(second.token()));
    assert_eq!(first + 1, second, "handed over");
}
