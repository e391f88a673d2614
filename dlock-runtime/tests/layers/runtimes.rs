//! Runtimes that end, stand still or lack something, while their leases go on.

use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{Config, LockError, LockManager, current};
use tokio::time::{sleep, timeout};

use crate::{connect, seconds as s, settle, waits};

#[test]
fn a_release_does_not_wait_for_a_renewal_that_never_began() {
    let mut hung = Vec::new();
    for yields in 0..40 {
        let memory = Memory::new();
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .event_interval(1)
            .build()
            .unwrap();
        let guard = rt.block_on(async {
            let guard = connect(&memory)
                .await
                .lock("k")
                .ttl(s(300))
                .acquire()
                .await
                .unwrap();
            settle().await;
            tokio::time::advance(s(120)).await;
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            guard
        });
        drop(rt);
        let rt = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let r = rt.block_on(async { timeout(Duration::from_millis(300), guard.release()).await });
        if r.is_err() {
            hung.push(yields)
        }
    }
    assert!(hung.is_empty(), "release hangs after {hung:?} yields");
}

/// At the connection, and at a call from another runtime.
#[test]
fn a_runtime_without_timers_is_an_error() {
    let without = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let with = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let manager = with.block_on(connect(&Memory::new()));
    let config = Config::with_backend(Memory::new());
    let connected = without.block_on(LockManager::connect(config)).map(drop);
    let locked = without.block_on(manager.lock("k").acquire()).map(drop);
    let again = without.block_on(manager.lock("k").run(async {}));
    for refused in [connected, locked, again] {
        let error = refused.expect_err("no timers");
        assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("`enable_time`"), "{error}");
    }
    with.block_on(manager.lock("k").run(async {}))
        .expect("it is free");
}

#[test]
fn a_guard_with_min_hold_may_outlive_its_runtime() {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let guard = rt.block_on(async {
        connect(&Memory::new())
            .await
            .lock("k")
            .min_hold(s(60))
            .acquire()
            .await
            .unwrap()
    });
    drop(rt);
    let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(guard)));
    assert!(r.is_ok(), "drop panicked");
}

#[test]
fn a_guard_may_outlive_its_runtime_in_an_outage() {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let memory = Memory::new();
    let guard = rt.block_on(async { connect(&memory).await.lock("k").acquire().await.unwrap() });
    drop(rt);
    memory.faults().set_unavailable(true);
    let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(guard)));
    assert!(r.is_ok(), "drop panicked");
}

#[test]
fn a_waiter_outlives_the_runtime_of_the_one_before_it() {
    let (a, b) = (
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap(),
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap(),
    );
    let memory = Memory::new();
    let (here, there) = b.block_on(async { (connect(&memory).await, connect(&memory).await) });
    let held = b.block_on(there.lock("k").acquire()).unwrap();
    let mut leader = Box::pin(here.lock("k").acquire());
    assert!(a.block_on(waits(&mut leader)));
    a.spawn(leader);
    let mut second = Box::pin(here.lock("k").acquire());
    assert!(b.block_on(waits(&mut second)));
    drop(a);
    let r = b.block_on(async {
        held.release().await.unwrap();
        timeout(s(60), second).await
    });
    assert!(matches!(r, Ok(Ok(_))), "{r:?}");
}

/// A store whose answers are heard by the runtime of the caller, after a while.
#[derive(Debug)]
struct Elsewhere(Memory);

#[async_trait::async_trait]
impl Backend for Elsewhere {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.local = false;
        capabilities
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        sleep(s(1)).await;
        self.0.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        sleep(s(1)).await;
        self.0.acquire(r).await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.0.renew(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        self.0.release(r).await
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.0.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.0.list(p).await
    }
}

/// It has asked the store, and cannot hear the answer.
#[test]
fn a_leader_whose_runtime_is_blocked_holds_up_no_other_runtime() {
    let current_thread = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    };
    let here = current_thread();
    let manager = here.block_on(async {
        let config = Config::with_backend(Elsewhere(Memory::new()));
        LockManager::connect(config).await.unwrap()
    });
    let (begun, begins) = std::sync::mpsc::channel();
    let (go_on, blocks) = std::sync::mpsc::channel::<()>();
    let leader = manager.lock("k").acquire();
    let blocked = std::thread::spawn(move || {
        current_thread().block_on(async {
            let mut leader = Box::pin(leader);
            assert!(waits(&mut leader).await);
            begun.send(()).unwrap();
            blocks.recv().unwrap();
            leader.await.unwrap().release().await.unwrap();
        });
    });
    begins.recv().unwrap();
    here.block_on(async {
        let had = timeout(s(30), manager.lock("k").acquire()).await;
        let guard = had.expect("not held up").expect("the lock");
        guard.release().await.expect("held");
    });
    go_on.send(()).unwrap();
    blocked.join().unwrap();
}

#[test]
fn min_hold_outlives_the_runtime() {
    let memory = Memory::new();
    let rt = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = rt();
    let here = first.block_on(connect(&memory));
    first
        .block_on(here.lock("k").ttl(s(30)).min_hold(s(60)).run(async {}))
        .unwrap();
    drop(first);
    let r = rt().block_on(async {
        connect(&memory)
            .await
            .lock("k")
            .try_acquire()
            .await
            .map(drop)
    });
    assert!(r.is_err(), "released before min_hold, and before the ttl");
}

/// The keeper is at work where the store was connected. When that runtime ends,
/// the leases of another one are kept there.
#[test]
fn leases_outlive_the_runtime_that_kept_them() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (connected, taking) = (runtime(), runtime());
    let memory = Memory::new();
    let manager = connected.block_on(connect(&memory));
    // On a busy machine the keeper may come a second late.
    let ttl = Duration::from_secs(2);
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let (inside, is_inside) = tokio::sync::oneshot::channel::<()>();
    let body = manager.lock("k").ttl(ttl).run(async move {
        inside.send(()).unwrap();
        told.await.unwrap();
        sleep(2 * ttl).await;
        current().unwrap().is_held()
    });
    let body = taking.spawn(body);
    taking.block_on(is_inside).unwrap();
    drop(connected);
    tell.send(()).unwrap();
    assert!(taking.block_on(body).unwrap().unwrap());
}
