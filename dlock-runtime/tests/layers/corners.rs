//! The corners where layers meet: a loss while somebody waits, a runtime that
//! ends, a shutdown, one of several keys.

use std::future::Future as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{Config, LockError, LockManager, OnLost, current, lock};
use tokio::time::{sleep, timeout};

use crate::{connect, seconds as s, settle, waits};

#[tokio::test(start_paused = true)]
async fn a_lost_guard_does_not_keep_local_waiters_out() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let guard = here
        .lock("k")
        .ttl(s(3))
        .max_hold(s(5))
        .acquire()
        .await
        .unwrap();
    guard.lost().await;
    sleep(s(10)).await;
    // Free in the store: another process has it at once.
    there
        .lock("k")
        .ttl(s(3))
        .try_acquire()
        .await
        .expect("free")
        .release()
        .await
        .unwrap();
    let other = timeout(s(3600), here.lock("k").ttl(s(3)).acquire()).await;
    assert!(other.is_ok(), "a free lock was slept on for an hour");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_ran_out_is_not_busy() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let _guard = here
        .lock("k")
        .ttl(s(3))
        .renew(false)
        .acquire()
        .await
        .unwrap();
    sleep(s(10)).await;
    assert!(here.inspect("k").await.unwrap().is_none());
    drop(
        here.lock("k")
            .ttl(s(3))
            .try_acquire()
            .await
            .expect("nobody holds it"),
    );
}

#[tokio::test(start_paused = true)]
async fn a_nested_call_after_a_loss_does_not_wait_for_itself() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let body = async {
        memory.faults().take_away("k");
        current().unwrap().lost().await;
        lock("k").run(async {}).await
    };
    let out = timeout(
        s(3600),
        here.scope(lock("k").on_lost(OnLost::Continue).run(body)),
    )
    .await;
    assert!(out.is_ok(), "deadlock with itself");
}

#[tokio::test(start_paused = true)]
async fn min_hold_ends_with_a_loss() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let body = async {
        memory.faults().take_away("k");
        std::future::pending::<()>().await
    };
    let r = here.lock("k").min_hold(s(3600)).run(body).await;
    assert!(matches!(r, Err(LockError::Lost { .. })));
    let got = timeout(s(60), here.lock("k").acquire()).await;
    assert!(got.is_ok(), "the store's lock is free");
}

#[tokio::test(start_paused = true)]
async fn reentering_one_of_several_keys_shows_that_one() {
    let here = connect(&Memory::new()).await;
    let body = async {
        let outer = current().unwrap().tokens();
        let (key, token) = lock("b")
            .run(async {
                let h = current().unwrap();
                (h.key().to_string(), h.token())
            })
            .await
            .unwrap();
        (outer, key, token)
    };
    let (outer, key, token) = here.scope(lock(["a", "b"]).run(body)).await.unwrap();
    assert_eq!((key.as_str(), token), ("b", outer[1]), "outer {outer:?}");
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
async fn a_lease_handed_over_is_renewed_while_another_key_is_awaited() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let b = there.lock("b").acquire().await.unwrap();
    let start = there.lock("a").ttl(s(3)).acquire().await.unwrap();
    // leads, with a waiter behind it when the grant comes
    let m = here.clone();
    let first = tokio::spawn(async move { m.lock("a").ttl(s(3)).renew(false).run(async {}).await });
    settle().await;
    let m = here.clone();
    let both = tokio::spawn(async move { m.lock(["a", "b"]).ttl(s(3)).run(async {}).await });
    settle().await;
    start.release().await.unwrap();
    first.await.unwrap().unwrap();
    sleep(s(10)).await;
    b.release().await.unwrap();
    both.await
        .unwrap()
        .expect("renewed like any; the body never even ran");
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_while_another_is_awaited_is_taken_again() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let b = there.lock("b").acquire().await.unwrap();
    let mut both = Box::pin(here.lock(["a", "b"]).acquire());
    assert!(waits(&mut both).await);
    memory.faults().take_away("a");
    let a = there.lock("a").acquire().await.unwrap();
    settle().await;
    b.release().await.unwrap();
    let guard = timeout(s(100), both).await;
    assert!(guard.is_err(), "`a` is held by {}", a.token());
}

#[tokio::test(start_paused = true)]
async fn returned_means_released_after_a_dropped_guard_inside() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    memory.faults().set_delay(Some(s(1)));
    here.scope(lock("k").run(async {})).await.unwrap();
    here.lock("k")
        .try_acquire()
        .await
        .expect("control: returned means released")
        .release()
        .await
        .unwrap();
    here.scope(lock("k").run(async {
        drop(lock("k").acquire().await.unwrap());
    }))
    .await
    .unwrap();
    drop(
        here.lock("k")
            .try_acquire()
            .await
            .expect("returned means released"),
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_after_a_dropped_guard_tells_of_an_outage() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let mut kept = None;
    here.scope(lock("k").run(async {
        kept = Some(lock("k").acquire().await.unwrap());
        drop(lock("k").acquire().await.unwrap());
    }))
    .await
    .unwrap();
    memory.faults().set_unavailable(true);
    let r = kept.take().unwrap().release().await;
    assert!(matches!(r, Err(LockError::Unavailable { .. })), "{r:?}");
    memory.faults().set_unavailable(false);
    drop(there);
}

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

#[test]
fn a_runtime_without_timers_is_an_error() {
    let rt = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rt.block_on(async {
            connect(&Memory::new())
                .await
                .lock("k")
                .acquire_within(s(1))
                .await
        })
    }));
    assert!(r.is_ok(), "panicked");
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
    let leader = here.lock("k");
    a.spawn(async move {
        let _ = leader.acquire().await;
    });
    std::thread::sleep(Duration::from_millis(100));
    let second = here.lock("k");
    let second = b.spawn(async move { second.acquire().await });
    std::thread::sleep(Duration::from_millis(100));
    drop(a);
    let r = b.block_on(async {
        sleep(Duration::from_millis(100)).await;
        held.release().await.unwrap();
        timeout(s(5), second).await
    });
    assert!(matches!(r, Ok(Ok(Ok(_)))), "{r:?}");
}

/// A backend starts once and serves one manager.
#[tokio::test(start_paused = true)]
async fn a_backend_serves_one_manager() {
    let config = Config::with_backend(Memory::new());
    let one = LockManager::connect(config.clone()).await.unwrap();
    let two = LockManager::connect(config).await;
    assert!(matches!(two, Err(LockError::Config { .. })), "{two:?}");
    drop(one);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_refuses_those_who_wait() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let held = there.lock("k").acquire().await.unwrap();
    let mut waiter = Box::pin(here.lock("k").acquire());
    assert!(waits(&mut waiter).await);
    here.shutdown().await;
    held.release().await.unwrap();
    let r = timeout(s(5), waiter).await;
    assert!(matches!(r, Ok(Err(LockError::ShutDown { .. }))), "{r:?}");
}
#[tokio::test(start_paused = true)]
async fn a_running_body_may_reenter_after_a_shutdown() {
    let here = connect(&Memory::new()).await;
    let m = here.clone();
    let (run, guard) = here
        .scope(lock("k").run(async move {
            m.shutdown().await;
            (
                lock("k").run(async {}).await,
                lock("k").acquire().await.map(drop),
            )
        }))
        .await
        .unwrap();
    assert_eq!(run.is_ok(), guard.is_ok(), "{run:?} {guard:?}");
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_zero_in_the_configuration_is_try() {
    let memory = Memory::new();
    let here = LockManager::connect(Config::with_backend(memory.clone()).timeout(Duration::ZERO))
        .await
        .unwrap();
    memory.faults().set_delay(Some(Duration::from_millis(1)));
    here.lock("k")
        .acquire_within(Duration::ZERO)
        .await
        .expect("control: zero means try")
        .release()
        .await
        .unwrap();
    drop(here.lock("k").acquire().await.expect("free"));
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_the_retries_of_a_renewal() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let start = tokio::time::Instant::now();
    // ttl 30, max_hold 15: the only renewal is due at ~8..10 s.
    let body = async {
        sleep(s(5)).await;
        memory.faults().set_unavailable(true);
        sleep(s(20)).await; // 25: max_hold is long past
        memory.faults().set_unavailable(false);
        std::future::pending::<()>().await;
    };
    let r = here.lock("k").ttl(s(30)).max_hold(s(15)).run(body).await;
    assert!(matches!(r, Err(LockError::Lost { .. })));
    assert!(
        start.elapsed() <= s(31),
        "renewed after max_hold: held {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_ended_body_does_not_hear_of_the_next_ones_loss() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let start = there.lock("k").acquire().await.unwrap();
    let m = here.clone();
    let first =
        tokio::spawn(async move { m.lock("k").run(async { current().unwrap() }).await.unwrap() });
    settle().await;
    let m = here.clone();
    let second = tokio::spawn(async move { m.lock("k").run(std::future::pending::<()>()).await });
    settle().await;
    start.release().await.unwrap();
    let held = first.await.unwrap();
    settle().await;
    memory.faults().take_away("k");
    assert!(second.await.unwrap().is_err());
    assert!(
        timeout(s(1), held.lost()).await.is_err(),
        "never, as the lock was released first"
    );
}

#[tokio::test(start_paused = true)]
async fn namespaces_do_not_share_locks() {
    let memory = Memory::new();
    let one = LockManager::connect(Config::with_backend(memory.clone()).namespace("shop"))
        .await
        .unwrap();
    let two = LockManager::connect(Config::with_backend(memory.clone()).namespace("shop:eu"))
        .await
        .unwrap();
    let _g = one.lock("eu:stock").try_acquire().await.unwrap();
    drop(
        two.lock("stock")
            .try_acquire()
            .await
            .expect("another namespace"),
    );
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_of_several_keys_lasts_its_ttl() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let b = there.lock("b").acquire().await.unwrap();
    let m = here.clone();
    let both = tokio::spawn(async move {
        m.lock(["a", "b"])
            .ttl(s(30))
            .renew(false)
            .run(async { sleep(s(25)).await })
            .await
    });
    sleep(s(7)).await;
    b.release().await.unwrap();
    both.await
        .unwrap()
        .expect("a body of 25 s within a ttl of 30 s");
}

#[test]
fn an_error_of_connecting_speaks_of_no_lock() {
    let mut f = Box::pin(LockManager::connect(Config::default()));
    let std::task::Poll::Ready(Err(e)) = f
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    else {
        panic!()
    };
    assert!(!e.to_string().contains("lock `connect`"), "{e}");
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

#[tokio::test(start_paused = true)]
async fn losing_one_key_leaves_the_other_enterable() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let body = async {
        memory.faults().take_away("c");
        current().unwrap().lost().await;
        lock("d").run(async {}).await
    };
    let r = timeout(
        s(3600),
        here.scope(lock(["c", "d"]).on_lost(OnLost::Continue).run(body)),
    )
    .await;
    assert!(
        r.is_ok(),
        "`d` is still ours, and renewed for ever: deadlock"
    );
}

#[tokio::test(start_paused = true)]
async fn who_lost_one_of_several_keys_hands_none_over() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    let first = here.lock("d").acquire().await.unwrap();
    let both = tokio::spawn({
        let (here, memory) = (here.clone(), memory.clone());
        let body = async move {
            memory.faults().take_away("c");
            let held = current().unwrap();
            held.lost().await;
            held.tokens()[1]
        };
        let lock = here.lock(["c", "d"]).on_lost(OnLost::Continue);
        async move { lock.run(body).await }
    });
    settle().await;
    let behind = tokio::spawn({
        let lock = here.lock("d");
        async move { lock.run(async { current().unwrap().token() }).await }
    });
    settle().await;
    first.release().await.unwrap();
    let (both, behind) = (both.await.unwrap().unwrap(), behind.await.unwrap().unwrap());
    assert!(
        u64::from(behind) >= u64::from(both) + dlock_runtime::TOKENS_PER_GRANT,
        "handed over: {both}, then {behind}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_leases_that_have_run_out() {
    let memory = Memory::new();
    let here = connect(&memory).await;
    memory.faults().set_delay(None);
    let m = here.clone();
    let task = tokio::spawn(async move {
        m.lock("k")
            .ttl(s(600))
            .run(std::future::pending::<()>())
            .await
    });
    settle().await;
    memory.faults().set_unavailable(true);
    assert!(task.await.unwrap().is_err()); // lost: the ttl has passed
    let start = tokio::time::Instant::now();
    here.shutdown().await;
    assert!(
        start.elapsed() < s(60),
        "waited {:?} for a lease that ran out before",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_lost_lease_never_comes_back() {
    for _ in 0..3 {
        let memory = Memory::new();
        let here = connect(&memory).await;
        let t0 = std::time::Instant::now();
        let guard = here
            .lock("k")
            .ttl(Duration::from_millis(1000))
            .acquire()
            .await
            .unwrap();
        memory.faults().set_unavailable(true);
        memory.faults().set_delay(Some(Duration::from_millis(60)));
        sleep(Duration::from_millis(930).saturating_sub(t0.elapsed())).await;
        while guard.is_held() {
            std::thread::sleep(Duration::from_micros(100));
        }
        memory.faults().set_unavailable(false);
        for _ in 0..50 {
            tokio::task::yield_now().await;
            assert!(!guard.is_held(), "false, then true again");
        }
    }
}

/// Answers no release before the second request is there.
#[derive(Debug, Default)]
struct Pipelined {
    memory: Memory,
    asked: tokio::sync::watch::Sender<u32>,
}
#[async_trait::async_trait]
impl Backend for Pipelined {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.in_order = true;
        capabilities
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.memory.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.asked.send_modify(|asked| *asked += 1);
        self.memory.acquire(r).await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.memory.renew(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        let released = self.memory.release(r).await;
        let _ = self.asked.subscribe().wait_for(|&asked| asked == 2).await;
        released
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.memory.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.memory.list(p).await
    }
}

#[tokio::test]
async fn the_next_request_is_sent_behind_a_release() {
    let config = Config::with_backend(Pipelined::default()).handoff(0);
    let here = LockManager::connect(config).await.unwrap();
    let first = here.lock("k").acquire().await.unwrap();
    let second = here.lock("k").run(async {});
    let (second, released) = tokio::time::timeout(s(20), async {
        // In this order: the second waits in the process when the first goes back.
        tokio::join!(biased; second, first.release())
    })
    .await
    .expect("the next request waits for the answer of the release");
    released.unwrap();
    second.unwrap();
}

/// Ends each lease, and tells, before its caller has taken the grant.
#[derive(Debug, Default)]
struct Hasty {
    memory: Memory,
    ended: std::sync::Mutex<Vec<Owner>>,
    told: tokio::sync::watch::Sender<bool>,
}
#[async_trait::async_trait]
impl Backend for Hasty {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.acquire(r).await.map(Some)
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        let grant = self.memory.acquire(r).await?;
        self.memory.faults().take_away(&r.key);
        self.ended.lock().unwrap().push(r.owner);
        // The keeper looks for the lease, and does not find it.
        self.told.send_replace(true);
        settle().await;
        Ok(grant)
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.memory.renew(r).await
    }
    async fn release(&self, r: &Request) -> Result<Released, BackendError> {
        self.memory.release(r).await
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.memory.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.memory.list(p).await
    }
    async fn next_losses(&self) -> Vec<Owner> {
        let mut told = self.told.subscribe();
        let _ = told.wait_for(|&told| told).await;
        self.told.send_replace(false);
        self.ended.lock().unwrap().clone()
    }
    fn has_ended(&self, owner: Owner) -> bool {
        self.ended.lock().unwrap().contains(&owner)
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_does_not_begin_under_a_lease_that_is_known_to_have_ended() {
    let here = LockManager::connect(Config::with_backend(Hasty::default()))
        .await
        .unwrap();
    for wait in [true, false] {
        let refused = match wait {
            true => here.lock("k").acquire().await,
            false => here.lock("k").try_acquire().await,
        };
        let error = refused.map(drop).unwrap_err();
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    }
}

#[derive(Debug, Clone, Default)]
struct Forgetful(Memory);
#[async_trait::async_trait]
impl Backend for Forgetful {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    async fn try_acquire(&self, r: &Request) -> Result<Option<Grant>, BackendError> {
        self.0.try_acquire(r).await
    }
    async fn acquire(&self, r: &Request) -> Result<Grant, BackendError> {
        self.0.acquire(r).await
    }
    async fn renew(&self, r: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        self.0.renew(r).await
    }
    async fn release(&self, _: &Request) -> Result<Released, BackendError> {
        Ok(Released::NotHeld)
    }
    async fn inspect(&self, k: &str) -> Result<Option<LockInfo>, BackendError> {
        self.0.inspect(k).await
    }
    async fn list(&self, p: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.0.list(p).await
    }
}
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);
impl tracing::Subscriber for Warnings {
    fn enabled(&self, m: &tracing::Metadata<'_>) -> bool {
        *m.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_gone_at_release_is_told() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let here = LockManager::connect(Config::with_backend(Forgetful::default()))
        .await
        .unwrap();
    let r = here.lock("k").run(async {}).await;
    assert!(
        r.is_err() || warnings.0.load(Ordering::SeqCst) > 0,
        "Ok, and not even a warning"
    );
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
    let ttl = Duration::from_millis(300);
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let (inside, is_inside) = tokio::sync::oneshot::channel::<()>();
    let body = manager.lock("k").ttl(ttl).run(async move {
        inside.send(()).unwrap();
        told.await.unwrap();
        sleep(4 * ttl).await;
        current().unwrap().is_held()
    });
    let body = taking.spawn(body);
    taking.block_on(is_inside).unwrap();
    drop(connected);
    tell.send(()).unwrap();
    assert!(taking.block_on(body).unwrap().unwrap());
}

/// A store that has not answered is not somebody who holds the lock.
#[tokio::test]
async fn a_timeout_in_an_outage_is_told_as_one() {
    let memory = Memory::new();
    let (here, there) = (connect(&memory).await, connect(&memory).await);
    let limit = Duration::from_millis(100);
    memory.faults().set_delay(Some(s(3600)));
    let mut asked = Vec::new();
    for read in [false, false, true] {
        let request = here.lock("k");
        let request = if read { request.read() } else { request };
        asked.push(tokio::spawn(request.acquire_within(limit)));
    }
    for answer in asked {
        let answer = answer.await.unwrap();
        assert!(
            matches!(answer, Err(LockError::Unavailable { .. })),
            "{answer:?}"
        );
    }
    memory.faults().set_delay(None);
    let held = there.lock("k").acquire().await.unwrap();
    for read in [false, true] {
        let request = here.lock("k");
        let request = if read { request.read() } else { request };
        let answer = request.acquire_within(limit).await;
        assert!(
            matches!(answer, Err(LockError::Timeout { .. })),
            "{answer:?}"
        );
    }
    held.release().await.unwrap();
}
