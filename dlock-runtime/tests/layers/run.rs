use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dlock_runtime::LockError;

use crate::{connect, manager, seconds, settle};

#[tokio::test(start_paused = true)]
async fn the_body_is_never_polled_when_the_lock_was_not_had() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let guard = there.lock("k").try_acquire().await.expect("free");
    let polled = RefCell::new(false);
    let request = here
        .lock("k")
        .patience(dlock_runtime::Patience::Within(seconds(1)));
    let answer = request.run(async { *polled.borrow_mut() = true }).await;
    assert!(
        matches!(answer, Err(LockError::Timeout { .. })),
        "{answer:?}"
    );
    assert!(!*polled.borrow());
    guard.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn what_the_body_owns_is_dropped_before_the_lock_goes_back() {
    struct Dropped<'a>(
        &'a RefCell<Vec<bool>>,
        dlock_runtime::backend::memory::Memory,
    );
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            use dlock_runtime::backend::Backend;
            let mut inspect = pin!(self.1.inspect("k"));
            let poll = inspect
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            let Poll::Ready(Ok(info)) = poll else {
                panic!("memory answers at once")
            };
            self.0.borrow_mut().push(info.is_some());
        }
    }
    let (memory, manager) = manager().await;
    let held = RefCell::new(Vec::new());
    let owned = Dropped(&held, memory.clone());
    manager
        .lock("k")
        .run(async move { drop(owned) })
        .await
        .expect("free");
    // Ended, dropped while it waits, and lost.
    let owned = Dropped(&held, memory.clone());
    let waiting = manager.lock("k").run(async move {
        let _owned = owned;
        std::future::pending::<()>().await;
    });
    assert!(tokio::time::timeout(seconds(1), waiting).await.is_err());
    assert_eq!(*held.borrow(), [true, true]);
    settle().await;
    assert!(manager.inspect("k").await.expect("answers").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_panic_gives_the_lock_back() {
    let (_, manager) = manager().await;
    let here = manager.clone();
    let task =
        tokio::spawn(async move { here.lock("k").run(async { panic!("on purpose") }).await });
    assert!(task.await.expect_err("panics").is_panic());
    manager
        .lock("k")
        .acquire()
        .await
        .expect("given back")
        .release()
        .await
        .expect("held");
}

/// Dropped at every poll, one by one, with the lock free, held by somebody
/// else, and queued for: nothing is left.
#[tokio::test(start_paused = true)]
async fn dropped_at_every_poll_it_leaves_nothing() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    memory
        .faults()
        .set_delay(Some(std::time::Duration::from_millis(1)));
    for held in [false, true] {
        for polls in 0..60 {
            let guard = match held {
                true => Some(there.lock("k").acquire().await.expect("free")),
                false => None,
            };
            {
                let mut run = pin!(here.lock("k").run(settle()));
                for _ in 0..polls {
                    let poll = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    if poll.is_ready() {
                        break;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
            }
            if let Some(guard) = guard {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                let info = there.inspect("k").await.expect("answers").expect("held");
                assert_eq!(info.waiters, 0, "left in the queue after {polls} polls");
                guard.release().await.expect("held");
            }
            let free = there.lock("k").acquire_within(seconds(1)).await;
            free.unwrap_or_else(|error| panic!("after {polls} polls: {error}"))
                .release()
                .await
                .expect("held");
        }
    }
    assert!(there.list("").await.expect("answers").is_empty());
}

/// A guard that outlives its runtime, or is dropped outside of any.
#[test]
fn a_guard_may_be_dropped_outside_a_runtime() {
    let runtime = tokio::runtime::Runtime::new().expect("starts");
    let (_memory, manager) = runtime.block_on(manager());
    let guard = runtime
        .block_on(manager.lock("k").try_acquire())
        .expect("free");
    drop(guard);
    runtime.block_on(async {
        manager
            .lock("k")
            .try_acquire()
            .await
            .expect("given back")
            .release()
            .await
            .expect("held");
    });
    let guard = runtime
        .block_on(manager.lock("k").try_acquire())
        .expect("free");
    drop(runtime);
    drop(guard);
}

#[test]
fn a_call_outside_a_runtime_is_an_error() {
    let runtime = tokio::runtime::Runtime::new().expect("starts");
    let (_memory, manager) = runtime.block_on(manager());
    let mut acquire = pin!(manager.lock("k").acquire());
    let poll = acquire
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(LockError::Unsupported { reason, .. })) = poll else {
        panic!("expected Unsupported, got {poll:?}")
    };
    assert!(reason.contains("runtime"), "{reason}");
}

/// One manager serves one runtime after the other.
#[test]
fn a_manager_outlives_the_runtime_that_made_it() {
    let (_memory, manager) = tokio::runtime::Runtime::new()
        .expect("starts")
        .block_on(manager());
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("starts");
        runtime.block_on(async {
            let body = tokio::time::sleep(seconds(60));
            manager
                .lock("k")
                .ttl(seconds(3))
                .run(body)
                .await
                .expect("renewed here too");
        });
    }
}

#[test]
fn the_future_is_near_the_size_of_its_body() {
    let runtime = tokio::runtime::Runtime::new().expect("starts");
    let (_memory, manager) = runtime.block_on(manager());
    let body = async {
        let big = [0_u8; 4096];
        settle().await;
        std::hint::black_box(&big);
    };
    let size = size_of_val(&body);
    let run = manager.lock("k").run(body);
    assert!(
        size_of_val(&run) <= size + 128,
        "{} over {size}",
        size_of_val(&run)
    );
}
