//! Runtimes that end, stand still or lack something, while their leases go on.

use std::cell::RefCell;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_runtime::backend::memory::Memory;
use dlock_runtime::backend::*;
use dlock_runtime::{Config, LockGuard, LockManager, LockScopeExt, LossReason, current};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{advance, sleep, timeout};

use crate::support::alone::alone;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{had, held, is_busy, is_unsupported};
use crate::support::over_memory::Otherwise;
use crate::support::wait::HANG;
use crate::{connect, current_thread, one_worker, seconds as s, settle, waits};

#[test]
fn a_release_does_not_wait_for_a_renewal_that_never_began() {
    for yields in 0..40 {
        let memory = Memory::new();
        let mut paused = Builder::new_current_thread();
        paused.enable_all().start_paused(true).event_interval(1);
        let guard = paused.build().unwrap().block_on(async {
            let guard = held(connect(&memory).await.lock("k").ttl(s(300))).await;
            settle().await;
            advance(s(120)).await;
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
            guard
        });
        // The guard's ttl is longer than this by far.
        let limit = s(20);
        let released = current_thread().block_on(async { timeout(limit, guard.release()).await });
        assert!(released.is_ok(), "release hangs after {yields} yields");
    }
}

/// At the connection, and at a call from another runtime.
#[test]
fn a_runtime_without_timers_is_an_error() {
    let without = Builder::new_current_thread().build().unwrap();
    let with = Builder::new_current_thread().enable_time().build().unwrap();
    let manager = with.block_on(connect(&Memory::new()));
    let config = Config::with_backend(Memory::new());
    let connected = without.block_on(LockManager::connect(config)).map(drop);
    let locked = without.block_on(manager.lock("k").acquire()).map(drop);
    let again = without.block_on(manager.lock("k").run(async {}));
    for refused in [connected, locked, again] {
        let error = is_unsupported(refused);
        assert!(error.to_string().contains("`enable_time`"), "{error}");
    }
    with.block_on(manager.lock("k").run(async {}))
        .expect("it is free");
}

/// Its drop does not panic: of a lock that is to be kept, and in an outage.
#[test]
fn a_guard_may_outlive_its_runtime() {
    for outage in [false, true] {
        let runtime = current_thread();
        let memory = Memory::new();
        let guard = runtime.block_on(async {
            let lock = connect(&memory).await.lock("k");
            held(if outage { lock } else { lock.min_hold(s(60)) }).await
        });
        drop(runtime);
        memory.faults().set_unavailable(outage);
        drop(guard);
    }
}

#[test]
fn a_waiter_outlives_the_runtime_of_the_one_before_it() {
    let (a, b) = (one_worker(), one_worker());
    let memory = Memory::new();
    let (here, there) = b.block_on(async { (connect(&memory).await, connect(&memory).await) });
    let guard = b.block_on(held(there.lock("k")));
    let mut leader = Box::pin(here.lock("k").acquire());
    assert!(a.block_on(waits(&mut leader)));
    a.spawn(leader);
    let mut second = Box::pin(here.lock("k").acquire());
    assert!(b.block_on(waits(&mut second)));
    drop(a);
    let served = b.block_on(async {
        guard.release().await.unwrap();
        timeout(s(60), second).await
    });
    assert!(matches!(served, Ok(Ok(_))), "{served:?}");
}

/// A store whose answers are heard by the runtime of the caller, after a while.
#[derive(Debug)]
struct Elsewhere(Memory);

#[async_trait::async_trait]
impl Otherwise for Elsewhere {
    fn memory(&self) -> &Memory {
        &self.0
    }
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
}

/// It has asked the store, and cannot hear the answer.
#[test]
fn a_leader_whose_runtime_is_blocked_holds_up_no_other_runtime() {
    let here = current_thread();
    let manager = here.block_on(Elsewhere(Memory::new()).manager());
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
    here.block_on(had(&manager, "k"));
    go_on.send(()).unwrap();
    blocked.join().unwrap();
}

#[test]
fn min_hold_outlives_the_runtime() {
    let memory = Memory::new();
    let first = current_thread();
    let here = first.block_on(connect(&memory));
    let kept = here.lock("k").ttl(s(30)).min_hold(s(60));
    first.block_on(kept.run(async {})).unwrap();
    drop(first);
    let next = current_thread();
    let there = next.block_on(connect(&memory));
    is_busy(next.block_on(there.lock("k").try_acquire()));
}

/// The keeper is at work where the store was connected. When that runtime ends,
/// the leases of another one are kept there.
#[test]
fn leases_outlive_the_runtime_that_kept_them() {
    let ttl = Duration::from_secs(2);
    let on_a_thread = async || {
        let outlive = std::thread::spawn(move || leases_outlive(ttl));
        outlive.join().expect("no panic");
    };
    current_thread().block_on(unless_it_stands_still(ttl / 4, on_a_thread));
}

fn leases_outlive(ttl: Duration) {
    let (connected, taking) = (one_worker(), one_worker());
    let memory = Memory::new();
    let manager = connected.block_on(connect(&memory));
    let (tell, told) = oneshot::channel::<()>();
    let (inside, is_inside) = oneshot::channel::<()>();
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

/// The keeper has moved to where the lease was taken.
#[test]
fn a_loss_is_told_after_the_runtime_that_connected_has_ended() {
    let (connected, taking) = (one_worker(), one_worker());
    let memory = Memory::new();
    let manager = connected.block_on(connect(&memory));
    let lock = manager.lock("k").ttl(s(600)).renew(false);
    let guard = taking.block_on(held(lock));
    drop(connected);
    assert!(memory.faults().take_away("k"), "it is held");
    let told = taking.block_on(async { timeout(HANG, guard.lost()).await });
    assert_eq!(told.expect("in time"), LossReason::Gone);
}

/// What looks after them ends with the runtime on which it began, and begins anew on the next.
#[test]
fn who_does_not_come_is_passed_over_on_the_second_runtime_too() {
    let paused = || {
        let mut paused = Builder::new_current_thread();
        paused.enable_all().start_paused(true).build().unwrap()
    };
    let (first, second) = (paused(), paused());
    let memory = Memory::new();
    let managers = async { (connect(&memory).await, connect(&memory).await) };
    let (here, there) = first.block_on(managers);
    let who_does_not_come = async || {
        let guard = held(there.lock("k")).await;
        let mut sleepy = Box::pin(here.lock("k").acquire());
        assert!(waits(&mut sleepy).await);
        guard.release().await.unwrap();
        settle().await;
        sleepy
    };
    first.block_on(async { drop(who_does_not_come().await) });
    drop(first);
    second.block_on(async {
        let sleepy = who_does_not_come().await;
        is_busy(there.lock("k").try_acquire().await);
        let other = timeout(s(4), there.lock("k").acquire()).await;
        drop(other.expect("within seconds").expect("the lock"));
        drop(sleepy);
    });
}

/// A store whose manager has a thread of its own, and the time of the machine.
#[derive(Debug)]
struct Remote(Memory);

#[async_trait::async_trait]
impl Otherwise for Remote {
    fn memory(&self) -> &Memory {
        &self.0
    }
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.local = false;
        capabilities
    }
}

/// As when a `#[tokio::main]` would keep its runtime in a thread-local, or a library does: its tasks
/// are dropped when those of tokio and of dlock are gone already. With `panic = "abort"`, a panic
/// there would end the program.
#[test]
fn what_ends_with_its_thread_does_not_panic() {
    thread_local! {
        static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
    }
    static PANICS: AtomicUsize = AtomicUsize::new(0);

    /// Ends inside the lock, where it gives back another one.
    struct Owns(#[allow(dead_code, reason = "it is dropped")] LockGuard);

    alone(
        "runtimes::what_ends_with_its_thread_does_not_panic",
        &[],
        || {
            std::panic::set_hook(Box::new(|panic| {
                PANICS.fetch_add(1, Ordering::SeqCst);
                eprintln!("{panic}");
            }));
            let memory = Memory::new();
            let other = one_worker();
            let elsewhere = other.block_on(Remote(memory.clone()).manager());
            let here = memory.clone();
            let thread = std::thread::spawn(move || {
                // Destroyed after what is used later.
                RUNTIME.with_borrow(Option::is_none);
                let runtime = current_thread();
                runtime.block_on(async {
                    let here = Remote(here).manager().await;
                    for (name, manager) in [("here", here), ("elsewhere", elsewhere)] {
                        let key = |what: &str| format!("{name}:{what}");
                        let owned = Owns(held(manager.lock(key("owned"))).await);
                        let body = async move {
                            let _owned = owned;
                            pending::<()>().await;
                        };
                        tokio::spawn(manager.lock(key("run")).run(body));
                        let guard = held(manager.lock(key("scope"))).await;
                        let work = async move {
                            let _guard = guard;
                            pending::<()>().await;
                        };
                        tokio::spawn(manager.scope(work.in_lock_scope()));
                        let kept = held(manager.lock(key("kept")).ttl(s(30)).min_hold(s(60))).await;
                        tokio::spawn(async move {
                            let _kept = kept;
                            pending::<()>().await;
                        });
                    }
                    settle().await;
                });
                RUNTIME.set(Some(runtime));
            });
            thread.join().expect("no panic");
            assert_eq!(PANICS.load(Ordering::SeqCst), 0);
            other.block_on(async {
                let next = connect(&memory).await;
                for name in ["here", "elsewhere"] {
                    for what in ["run", "owned", "scope"] {
                        drop(held(next.lock(format!("{name}:{what}"))).await);
                    }
                    is_busy(next.lock(format!("{name}:kept")).try_acquire().await);
                }
            });
        },
    );
}

/// Neither for `min_hold` nor between attempts in an outage, whether or not the runtime where the
/// store was connected is still there.
#[test]
fn a_lock_may_go_back_where_there_are_no_timers() {
    for (has_ended, outage, dropped) in (0..8).map(|n| (n & 1 > 0, n & 2 > 0, n & 4 > 0)) {
        let memory = Memory::new();
        let connected = one_worker();
        let guard = connected.block_on(async {
            let lock = connect(&memory).await.lock("k").ttl(s(30));
            held(if outage { lock } else { lock.min_hold(s(60)) }).await
        });
        let connected = (!has_ended).then_some(connected);
        memory.faults().set_unavailable(outage);
        let without = Builder::new_current_thread().build().unwrap();
        without.block_on(async {
            match dropped {
                true => drop(guard),
                false => assert_eq!(guard.release().await.is_err(), outage),
            }
            settle().await;
        });
        memory.faults().set_unavailable(false);
        let next = current_thread();
        next.block_on(async {
            let next = connect(&memory).await;
            match outage {
                // Whoever gave it back tries again, if there is a place to do so.
                true if !has_ended => drop(held(next.lock("k")).await),
                _ => drop(is_busy(next.lock("k").try_acquire().await)),
            }
        });
        drop(connected);
    }
}
