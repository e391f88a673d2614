use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::{LockError, LockScopeExt, Patience, current, lock};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::{connect, manager, seconds as s, settle, waits};

#[tokio::test(start_paused = true)]
async fn a_nested_call_has_the_same_token_and_no_wait() {
    let (_, manager) = manager().await;
    let body = async {
        let outer = current().expect("inside").token();
        let inner = lock("k")
            .patience(Patience::Try)
            .run(async { current().map(|h| h.token()) });
        assert_eq!(inner.await.expect("re-enters"), Some(outer));
        assert!(current().expect("still inside").is_held());
    };
    manager.scope(lock("k").run(body)).await.expect("free");
    assert!(current().is_none());
    assert!(manager.inspect("k").await.expect("answers").is_none());
}

#[tokio::test(start_paused = true)]
async fn halves_of_a_join_exclude_each_other() {
    let (_, manager) = manager().await;
    let inside = std::cell::Cell::new(0);
    let half = || {
        lock("k").run(async {
            inside.set(inside.get() + 1);
            assert_eq!(inside.get(), 1, "both halves are inside");
            settle().await;
            inside.set(inside.get() - 1);
        })
    };
    let (one, other) = manager.scope(async { tokio::join!(half(), half()) }).await;
    one.and(other).expect("both get their turn");
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_queues_unless_in_lock_scope() {
    let (_, manager) = manager().await;
    let child = || async { lock("k").patience(Patience::Try).run(async {}).await };
    let body = async {
        // The manager comes along with the scope; the locks must not.
        let outside = tokio::spawn(manager.scope(child())).await.expect("ends");
        assert!(
            matches!(outside, Err(LockError::Busy { .. })),
            "{outside:?}"
        );
        tokio::spawn(child().in_lock_scope())
            .await
            .expect("ends")
            .expect("re-enters");
    };
    manager.scope(lock("k").run(body)).await.expect("free");
}

/// The global manager is not there, as in a test of a service.
#[tokio::test(start_paused = true)]
async fn a_spawned_task_that_left_its_manager_is_told_how_to_keep_it() {
    let (_, manager) = manager().await;
    let child = || lock("k").run(async {});
    let body = async {
        let left = tokio::spawn(child()).await.expect("ends");
        let error = left.expect_err("no manager");
        assert!(
            matches!(error, LockError::NotInitialized { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("`in_lock_scope()`"), "{error}");
        let kept = tokio::spawn(child().in_lock_scope()).await;
        kept.expect("ends").expect("free");
    };
    manager.scope(body).await;
}

#[tokio::test(start_paused = true)]
async fn the_right_to_reenter_ends_with_the_lock() {
    let (_, manager) = manager().await;
    let (go, gone) = oneshot::channel();
    let child = manager
        .scope(lock("k").run(async {
            let child = async {
                gone.await.expect("the parent sends");
                assert!(current().is_none(), "the lock has gone back");
                lock("k").patience(Patience::Try).run(async {}).await
            };
            tokio::spawn(child.in_lock_scope())
        }))
        .await
        .expect("free");
    let guard = manager
        .lock("k")
        .try_acquire()
        .await
        .expect("the body has ended");
    go.send(()).expect("the child waits");
    let answer = child.await.expect("ends");
    assert!(matches!(answer, Err(LockError::Busy { .. })), "{answer:?}");
    guard.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_reentered_keeps_the_lock_until_it_ends() {
    let (_, manager) = manager().await;
    let (entered, has_entered) = oneshot::channel();
    let (go, gone) = oneshot::channel::<()>();
    let child = manager
        .scope(lock("k").run(async {
            let child = lock("k").run(async {
                entered.send(()).expect("the parent waits");
                gone.await.expect("the test sends");
                current().expect("inside").is_held()
            });
            let child = tokio::spawn(child.in_lock_scope());
            has_entered.await.expect("the child enters");
            child
        }))
        .await
        .expect("free");
    let mut next = Box::pin(manager.lock("k").acquire());
    assert!(waits(&mut next).await, "a body inside would run unlocked");
    go.send(()).expect("the child waits");
    assert!(child.await.expect("ends").expect("no loss"));
    next.await
        .expect("the child has ended")
        .release()
        .await
        .expect("held");
}

#[tokio::test(start_paused = true)]
async fn writing_inside_ones_own_read_would_deadlock() {
    let (_, manager) = manager().await;
    let body = async {
        let write = lock("k").run(async {}).await;
        assert!(
            matches!(write, Err(LockError::WouldDeadlock { .. })),
            "{write:?}"
        );
        lock("k")
            .read()
            .run(async {})
            .await
            .expect("reading re-enters");
    };
    manager
        .scope(lock("k").read().run(body))
        .await
        .expect("free");
    let body = async {
        lock("k")
            .read()
            .run(async {})
            .await
            .expect("a writer may read")
    };
    manager.scope(lock("k").run(body)).await.expect("free");
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
async fn managers_do_not_share_what_they_hold() {
    let (memory, one) = manager().await;
    let other = crate::connect(&memory).await;
    let body = async {
        let refused = other.lock("k").try_acquire().await;
        assert!(matches!(refused, Err(LockError::Busy { .. })));
    };
    one.lock("k").run(body).await.expect("free");
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_key_rise_through_reentry() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let body = async {
        let g = there.lock("b").acquire().await.unwrap();
        let seen = g.token();
        g.release().await.unwrap();
        let inner = async {
            lock("b")
                .run(async { current().unwrap().token() })
                .await
                .unwrap()
        };
        (seen, lock(["a", "b"]).run(inner).await.unwrap())
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
    let here = connect(&Memory::new()).await;
    let d = D(seen.clone());
    let _ = timeout(
        s(1),
        here.lock("k").run(async move {
            let _d = d;
            std::future::pending::<()>().await
        }),
    )
    .await;
    assert_eq!(
        seen.load(Ordering::SeqCst),
        1,
        "`current()` is None while the lock is held"
    );
}
