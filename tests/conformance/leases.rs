//! Leases: renewed, fixed, limited, lost, and kept while a body blocks. (Guarantee 10, and the
//! part of guarantee 1 about losses.)

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use dlock::{
    LockError, LockGuard, LockManager, LockRequest, LossReason, current, distributed_lock,
};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Store, connect, free, had, nothing_left, process};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{held, is_busy, is_lost, says, served};
use crate::support::polls::{Polled, leave_at_poll};
use crate::support::runtimes::current_thread;
use crate::support::wait::{HANG, within};

pub(crate) async fn a_lease_is_renewed(store: &mut dyn Store) {
    let ttl = store.short_ttl();
    unless_it_stands_still(ttl / 4, async || is_renewed(store, ttl).await).await;
}

async fn is_renewed(store: &dyn Store, ttl: Duration) {
    let (manager, other) = (process(store).await, process(store).await);
    let guard = held(manager.lock("guard").ttl(ttl)).await;
    let body = async {
        let start = Instant::now();
        while start.elapsed() < 3 * ttl {
            for key in ["body", "guard"] {
                is_busy(other.lock(key).try_acquire().await);
            }
            assert!(current().expect("inside the lock").is_held());
            sleep(ttl / 20).await;
        }
    };
    let renewed = manager.lock("body").ttl(ttl).run(body).await;
    renewed.expect("a lease that is renewed");
    assert!(guard.is_held());
    guard.release().await.expect("a lease that was renewed");
}

pub(crate) async fn a_fixed_lease_ends(store: &mut dyn Store) {
    unless_it_stands_still(store.short_ttl() / 4, async || ends_fixed(store).await).await;
}

async fn ends_fixed(store: &dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let ttl = store.short_ttl();
    let fixed = || manager.lock("key").ttl(ttl).renew(false);
    let in_time = fixed().run(async {}).await;
    in_time.expect("a body that ends in time");

    let start = Instant::now();
    let went_on = AtomicBool::new(false);
    let body = async {
        sleep(HANG).await;
        went_on.store(true, Relaxed);
    };
    is_lost(within(HANG, fixed().run(body)).await);
    assert!(start.elapsed() < HANG && !went_on.load(Relaxed));
    had(&other, "key").await;
}

pub(crate) async fn max_hold_ends_a_hung_body(store: &mut dyn Store) {
    unless_it_stands_still(store.short_ttl() / 4, async || ends_hung(store).await).await;
}

async fn ends_hung(store: &dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let ttl = store.short_ttl();
    let limit = 2 * ttl;
    let start = Instant::now();
    let limited = || manager.lock("key").ttl(ttl).max_hold(limit);
    let hung = limited().run(std::future::pending::<()>());
    is_lost(within(HANG, hung).await);
    let lasted = start.elapsed();
    assert!(lasted >= ttl, "lost after {lasted:?} of {limit:?}");
    had(&other, "key").await;

    // A body that ends in time is not affected.
    let short = limited().run(async { 7 });
    assert_eq!(within(HANG, short).await.expect("the lock"), 7);
}

pub(crate) async fn a_lease_taken_away_ends_the_body(store: &mut dyn Store) {
    unless_it_stands_still(store.short_ttl() / 4, async || ends_its_body(store).await).await;
}

async fn ends_its_body(store: &dyn Store) {
    let manager = process(store).await;
    let ttl = store.short_ttl();
    let dropped = AtomicBool::new(false);
    let went_on = AtomicBool::new(false);
    let body = async {
        let _on_drop = OnDrop(|| dropped.store(true, Relaxed));
        store.take_away("key").await;
        sleep(2 * HANG).await;
        went_on.store(true, Relaxed);
    };
    let lost = manager.lock("key").ttl(ttl).run(body);
    let error = is_lost(within(HANG, lost).await);
    let LockError::Lost { key, token, .. } = &error else {
        unreachable!("{error:?}")
    };
    assert_eq!(key.to_string(), "key");
    says(&error, &[&token.to_string()]);
    assert!(dropped.load(Relaxed) && !went_on.load(Relaxed));
}

pub(crate) async fn a_lease_taken_away_shows_in_the_guard(store: &mut dyn Store) {
    unless_it_stands_still(store.short_ttl() / 4, async || shows_in_guard(store).await).await;
}

async fn shows_in_guard(store: &dyn Store) {
    let manager = process(store).await;
    let guard = held(manager.lock("key").ttl(store.short_ttl())).await;
    assert!(guard.is_held());
    store.take_away("key").await;
    let reason = within(HANG, guard.lost()).await;
    // Once resolved, it stays resolved.
    assert_eq!(within(HANG, guard.lost()).await, reason);
    assert!(!guard.is_held());
    assert_eq!(told(&is_lost(guard.release().await)), reason);
    free(&manager, "key").await;
}

/// The reason of the loss, from the error.
fn told(error: &LockError) -> LossReason {
    let LockError::Lost { reason, .. } = error else {
        unreachable!("{error:?}")
    };
    *reason
}

#[distributed_lock(key = "key", on_lost = "continue")]
async fn carry_on(
    runs: oneshot::Sender<()>,
    lost: oneshot::Receiver<()>,
) -> Result<bool, LockError> {
    let held = current().expect("inside the lock");
    assert!(held.is_held());
    runs.send(()).expect("the test waits");
    lost.await.expect("the test says when");
    within(HANG, held.lost()).await;
    // Another await: a body that was cancelled would end here.
    tokio::task::yield_now().await;
    Ok(held.is_held() || current().is_some_and(|held| held.is_held()))
}

pub(crate) async fn on_lost_continue_lets_the_body_go_on(store: &mut dyn Store) {
    unless_it_stands_still(store.short_ttl() / 4, async || goes_on(store).await).await;
}

async fn goes_on(store: &dyn Store) {
    let manager = connect(super::config(store).ttl(store.short_ttl())).await;
    let (runs, running) = oneshot::channel();
    let (tell, told) = oneshot::channel();
    let body = tokio::spawn(async move { manager.scope(carry_on(runs, told)).await });
    within(HANG, running).await.expect("the body runs");
    store.take_away("key").await;
    tell.send(()).expect("the body runs");
    assert!(!served(body).await, "it is still held");
}

/// Runs `body` on a current-thread runtime of its own.
async fn on_one_thread<T: Send + 'static>(body: impl Future<Output = T> + Send + 'static) -> T {
    let thread = tokio::task::spawn_blocking(|| current_thread().block_on(body));
    thread.await.expect("the thread")
}

/// The manager was connected on another runtime. So its keeper (for a store in memory, the
/// runtime that connected it) is not blocked.
pub(crate) async fn a_body_that_blocks_its_runtime_keeps_its_lease(store: &mut dyn Store) {
    let block = async || {
        let manager = process(store).await;
        keeps_its_lease_in_a_block(store, async move { manager }).await;
    };
    unless_it_stands_still(store.short_ttl() / 4, block).await;
}

/// The manager was connected on the runtime that the body blocks.
pub(crate) async fn a_body_that_blocks_the_runtime_of_its_manager_keeps_its_lease(
    store: &mut dyn Store,
) {
    if process(store).await.capabilities().local {
        return;
    }
    let block = async || keeps_its_lease_in_a_block(store, connect(super::config(store))).await;
    unless_it_stands_still(store.short_ttl() / 4, block).await;
}

async fn keeps_its_lease_in_a_block(
    store: &dyn Store,
    manager: impl Future<Output = LockManager> + Send + 'static,
) {
    let (other, ttl) = (process(store).await, store.short_ttl());
    let (inside, is_inside) = oneshot::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let blocked = tokio::spawn(on_one_thread({
        let is_over = Arc::clone(&is_over);
        async move {
            let manager = manager.await;
            let body = async {
                inside.send(()).expect("the test waits");
                std::thread::sleep(3 * ttl);
                tokio::task::yield_now().await;
                let held = current().expect("inside the lock").is_held();
                is_over.store(true, SeqCst);
                held
            };
            manager.lock("key").ttl(ttl).run(body).await
        }
    }));
    is_inside.await.expect("the body runs");
    while !is_over.load(SeqCst) {
        match other.lock("key").try_acquire().await {
            Err(LockError::Busy { .. }) => sleep(ttl / 20).await,
            Ok(_) => assert!(is_over.load(SeqCst), "had while the body was inside"),
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(served(blocked).await, "a lease that was kept");
}

pub(crate) async fn a_fixed_lease_is_lost_after_a_block(store: &mut dyn Store) {
    let (manager, ttl) = (process(store).await, store.short_ttl());
    unless_it_stands_still(ttl / 4, async || {
        let request = manager.lock("key").ttl(ttl).renew(false);
        is_lost_after_a_block(request, ttl * 3 / 2).await;
    })
    .await;
}

pub(crate) async fn a_lease_past_its_max_hold_is_lost_after_a_block(store: &mut dyn Store) {
    let (manager, ttl) = (process(store).await, store.short_ttl());
    unless_it_stands_still(ttl / 4, async || {
        // Renewed once, but not a second time.
        let request = manager.lock("key").ttl(ttl).max_hold(ttl / 2);
        is_lost_after_a_block(request, 2 * ttl).await;
    })
    .await;
}

/// The renewal is due before `max_hold` ends. If the body's runtime renews, as for a store in
/// memory, it stands still until after that; the renewal is then too late, but the other locks go
/// on.
pub(crate) async fn a_block_past_max_hold_holds_up_no_other_lock(store: &mut dyn Store) {
    let block = async || holds_up_no_other_lock(store).await;
    unless_it_stands_still(store.short_ttl() / 4, block).await;
}

async fn holds_up_no_other_lock(store: &dyn Store) {
    let (config, ttl) = (super::config(store), store.short_ttl());
    let (done, is_done) = oneshot::channel();
    // A thread for which no runtime waits, since it may hang.
    std::thread::spawn(move || {
        current_thread().block_on(async {
            let manager = connect(config).await;
            let body = async {
                std::thread::sleep(ttl * 3 / 5);
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            };
            let limited = manager.lock("key").ttl(ttl).max_hold(ttl * 2 / 5);
            match limited.run(body).await {
                // On a busy machine, the block may take longer than the ttl.
                Ok(()) | Err(LockError::Lost { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
            for key in ["key", "other"] {
                had(&manager, key).await;
            }
            manager.shutdown().await;
        });
        done.send(()).expect("the test waits");
    });
    within(HANG, is_done).await.expect("no panic");
}

/// The caller's runtime stands still, after some polls of the call, for longer than the ttl. A
/// lease that the store granted meanwhile has ended, and the store is asked again.
pub(crate) async fn a_runtime_that_stands_still_has_its_lock(store: &mut dyn Store) {
    // The machine must not stand still longer than the test makes it.
    let still = store.short_ttl() / 8;
    unless_it_stands_still(still, async || has_its_lock(store).await).await;
}

async fn has_its_lock(store: &dyn Store) {
    // The manager is connected on another runtime, and may stand still for a while.
    let manager = connect(super::config(store).request_timeout(HANG)).await;
    let capabilities = manager.capabilities();
    // Shorter than the block, but long enough for a grant on a busy machine.
    let ttl = capabilities.min_ttl.max(store.short_ttl() / 2);
    // A call that does not wait asks only twice: on a busy machine, the second attempt must be in
    // time.
    let long = ttl.max(store.short_ttl());
    let (config, waiting) = (super::config(store).request_timeout(HANG), manager.clone());
    let block = (2 * ttl).max(long * 3 / 2);
    let had = on_one_thread(async move {
        // A store in memory has its keeper on the runtime that connects it.
        let blocked = connect(config).await;
        had(&blocked, "known").await;
        for (number, manager) in [&waiting, &blocked].into_iter().enumerate() {
            let mut asked: Vec<(Call, usize)> = Vec::new();
            // The first calls may find no connection of their runtime.
            for (round, polls) in [1, 2, 1].into_iter().enumerate() {
                let lock = |name: &str| manager.lock(format!("{name}:{number}:{round}"));
                asked.push((Box::pin(lock("waits").ttl(ttl).acquire()), polls));
                asked.push((Box::pin(lock("tries").ttl(long).try_acquire()), polls));
                if capabilities.read_write {
                    asked.push((Box::pin(lock("reads").ttl(ttl).read().acquire()), polls));
                }
            }
            let asked = polled(asked).await;
            let lock = || Box::pin(manager.lock("queue").ttl(ttl).run(async {}));
            let mut first = lock();
            let behind: Vec<_> = (0..3).map(|_| tokio::spawn(lock())).collect();
            let waits = matches!(leave_at_poll(&mut first, 1, HANG).await, Polled::Dropped);
            std::thread::sleep(block);
            for released in are_had(asked).await {
                // Such a short lease may be lost on a busy machine.
                assert!(
                    matches!(released, Ok(()) | Err(LockError::Lost { .. })),
                    "{released:?}"
                );
            }
            if waits {
                within(HANG, first).await.expect("the lock");
            }
            for waiter in behind {
                served(waiter).await;
            }
        }
        blocked.shutdown().await;
    });
    within(2 * HANG, had).await;
    nothing_left(&manager).await;
}

/// The runtime stands still for longer than the request timeout. The store has answered all the
/// time, but nothing could receive the answers.
pub(crate) async fn a_runtime_that_stands_still_tells_of_no_outage(store: &mut dyn Store) {
    // Here the whole machine stands still, and not only the runtime.
    let still = REQUEST_TIMEOUT / 20;
    unless_it_stands_still(still, async || tells_of_no_outage(store).await).await;
}

/// With a busy disk, a store may take a second for one answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

async fn tells_of_no_outage(store: &dyn Store) {
    let config = || super::config(store).request_timeout(REQUEST_TIMEOUT);
    let manager = connect(config()).await;
    let has_readers = manager.capabilities().read_write;
    let (config, known) = (config(), manager.clone());
    let had = on_one_thread(async move {
        let blocked = connect(config).await;
        // The first calls of a manager find no connection of their runtime.
        let blocks: [&[_]; 2] = [&[(&known, 1)], &[(&known, 2), (&blocked, 1), (&blocked, 3)]];
        for (block, managers) in blocks.into_iter().enumerate() {
            let mut asked: Vec<(Call, usize)> = Vec::new();
            for (number, &(manager, polls)) in managers.iter().enumerate() {
                // Different keys each time: an earlier release may still be in flight.
                let lock = |name: &str| manager.lock(format!("{name}:{block}:{number}"));
                asked.push((Box::pin(lock("waits").acquire()), polls));
                let in_time = lock("within").acquire_within(3 * REQUEST_TIMEOUT);
                asked.push((Box::pin(in_time), polls));
                asked.push((Box::pin(lock("tries").try_acquire()), polls));
                if has_readers {
                    asked.push((Box::pin(lock("reads").read().acquire()), polls));
                }
            }
            let asked = polled(asked).await;
            std::thread::sleep(REQUEST_TIMEOUT * 3 / 2);
            for released in are_had(asked).await {
                released.expect("held");
            }
        }
        blocked.shutdown().await;
    });
    within(2 * HANG, had).await;
    nothing_left(&manager).await;
}

type Call = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

/// Polls each of these calls so often, and returns those that are not done then.
async fn polled(calls: Vec<(Call, usize)>) -> Vec<Call> {
    let mut left = Vec::new();
    for (mut call, polls) in calls {
        match leave_at_poll(&mut call, polls, HANG).await {
            Polled::Done(guard) => drop(guard.expect("the lock")),
            Polled::Dropped => left.push(call),
            Polled::Waiting => panic!("a free lock was waited for"),
        }
    }
    left
}

/// All these calls go on, side by side: each has its lock, and gives it back.
async fn are_had(calls: Vec<Call>) -> Vec<Result<(), LockError>> {
    let had = |call: Call| async { call.await.expect("the lock").release().await };
    let had: JoinSet<_> = calls.into_iter().map(had).collect();
    within(HANG, had.join_all()).await
}

async fn is_lost_after_a_block(request: LockRequest, block: Duration) {
    let went_on = Arc::new(AtomicBool::new(false));
    let blocked = on_one_thread({
        let went_on = Arc::clone(&went_on);
        async move {
            let body = async {
                std::thread::sleep(block);
                tokio::task::yield_now().await;
                went_on.store(true, Relaxed);
            };
            request.run(body).await
        }
    });
    is_lost(within(HANG, blocked).await);
    assert!(
        !went_on.load(Relaxed),
        "the body went on after its lease had ended"
    );
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
