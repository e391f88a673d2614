use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use dlock_runtime::Patience;
use dlock_runtime::backend::Backend as _;
use dlock_runtime::backend::memory::Memory;
use tokio::runtime::Builder;

use crate::support::locks::{held, is_late};
use crate::{connect, manager, one_worker, seconds, settle};

#[tokio::test(start_paused = true)]
async fn the_body_is_never_polled_when_the_lock_was_not_had() {
    let (memory, here) = manager().await;
    let there = connect(&memory).await;
    let guard = held(there.lock("k")).await;
    let body = async { unreachable!("somebody else is inside") };
    let request = here.lock("k").patience(Patience::Within(seconds(1)));
    is_late::<()>(request.run(body).await);
    guard.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn what_the_body_owns_is_dropped_before_the_lock_goes_back() {
    struct Dropped<'a>(&'a RefCell<Vec<bool>>, Memory);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
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
    let at_drop = RefCell::new(Vec::new());
    let owned = Dropped(&at_drop, memory.clone());
    let ran = manager.lock("k").run(async move { drop(owned) }).await;
    ran.expect("free");
    // Ended, dropped while it waits, and lost.
    let owned = Dropped(&at_drop, memory.clone());
    let waiting = manager.lock("k").run(async move {
        let _owned = owned;
        std::future::pending::<()>().await;
    });
    assert!(tokio::time::timeout(seconds(1), waiting).await.is_err());
    assert_eq!(*at_drop.borrow(), [true, true]);
    settle().await;
    assert!(manager.inspect("k").await.expect("answers").is_none());
}

/// A guard that outlives its runtime, or is dropped outside of any.
#[test]
fn a_guard_may_be_dropped_outside_a_runtime() {
    let runtime = one_worker();
    let (_memory, manager) = runtime.block_on(manager());
    drop(runtime.block_on(held(manager.lock("k"))));
    // At once.
    let guard = runtime.block_on(manager.lock("k").try_acquire());
    drop(runtime);
    drop(guard.expect("given back"));
}

/// One manager serves one runtime after the other.
#[test]
fn a_manager_outlives_the_runtime_that_made_it() {
    let (_memory, manager) = one_worker().block_on(manager());
    for _ in 0..3 {
        let mut paused = Builder::new_current_thread();
        let paused = paused.enable_all().start_paused(true).build();
        let body = || tokio::time::sleep(seconds(60));
        let run = async { manager.lock("k").ttl(seconds(3)).run(body()).await };
        let ran = paused.expect("a runtime").block_on(run);
        ran.expect("renewed here too");
    }
}

#[test]
fn the_future_is_near_the_size_of_its_body() {
    let (_memory, manager) = one_worker().block_on(manager());
    let body = async {
        let big = [0_u8; 4096];
        settle().await;
        std::hint::black_box(&big);
    };
    let size = size_of_val(&body);
    let with_lock = size_of_val(&manager.lock("k").run(body));
    assert!(with_lock <= size + 128, "{with_lock} over {size}");
}
