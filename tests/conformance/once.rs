//! A body that was done is remembered, and not done again for a while.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use dlock::request::Once;
use dlock::{LockError, LockManager, LockRequest, LockScopeExt, OnLost, current, distributed_lock};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{PASSED_OVER, Store, connect, free, had, nothing_left, process, queued};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    held, impatient, is_busy, is_done, is_lost, is_misconfigured, says, shown,
};
use crate::support::wait::{HANG, eventually, within};

/// Longer than any test.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(3600);

/// This many processes, if the store remembers what was done.
async fn processes<const COUNT: usize>(store: &dyn Store) -> Option<[LockManager; COUNT]> {
    let mut all = Vec::new();
    for _ in 0..COUNT {
        all.push(process(store).await);
    }
    let all: [_; COUNT] = all.try_into().expect("so many");
    all[0].capabilities().once.then_some(all)
}

pub(crate) fn once(manager: &LockManager) -> LockRequest<Once> {
    manager.lock("key").once(REMEMBERED)
}

/// Runs a body with this result.
async fn does<T, E>(request: LockRequest<Once>, how: Result<T, E>) -> Result<T, E> {
    let ran = within(HANG, request.run(async { how })).await;
    ran.expect("the lock")
}

async fn is_remembered(manager: &LockManager) {
    is_done(within(HANG, manager.lock("key").try_acquire()).await);
    is_done(within(HANG, manager.lock("key").acquire()).await);
    is_done(within(HANG, once(manager).run(async { Ok::<_, ()>(()) })).await);
}

/// Forgets the mark, so that nothing is left.
async fn forget(manager: &LockManager) {
    assert!(manager.forget("key").await.expect("forget"), "it was done");
    free(manager, "key").await;
}

pub(crate) async fn what_was_done_is_remembered(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let lock = once(&one).run(async {
        is_busy(once(&other).try_acquire().await);
        Ok::<_, ()>(current().expect("inside").token())
    });
    let token = within(HANG, lock).await.expect("the lock").expect("done");
    for manager in [&one, &other] {
        is_remembered(manager).await;
        if manager.capabilities().read_write {
            is_done(within(HANG, manager.lock("key").read().acquire()).await);
        }
        if manager.capabilities().permits {
            is_done(within(HANG, manager.lock("key").permits(3).try_acquire()).await);
        }
        let seen = shown(manager, "key").await;
        let done = seen.done.expect("it is done");
        assert!(!done.owner.is_empty() && seen.holders.is_empty());
        assert_eq!(seen.waiters, store.counts_waiters().then_some(0));
        assert!(done.expires_in.is_none_or(|left| left <= REMEMBERED));
        let listed = manager.list("k").await.expect("list");
        assert!(matches!(&listed[..], [lock] if lock.key == "key" && lock.done.is_some()));
    }
    // Other keys are not affected.
    had(&other, "key:other").await;
    forget(&other).await;
    assert!(!one.forget("key").await.expect("forget"), "once is enough");
    let guard = held(one.lock("key")).await;
    assert!(guard.token() >= token);
    assert!(!other.forget("key").await.expect("forget"), "it is held");
    is_busy(other.lock("key").try_acquire().await);
    guard.release().await.expect("the release");
    nothing_left(&one).await;
}

pub(crate) async fn it_is_remembered_for_its_time(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let time = Duration::from_secs(3);
    let attempt = async || {
        let lock = one.lock("key").once(time);
        does(lock, Ok::<_, ()>(())).await.expect("done");
        is_done(within(HANG, other.lock("key").try_acquire()).await);
        let left = shown(&one, "key").await.done.expect("it is done");
        assert!(left.expires_in.is_none_or(|left| left <= time));
        eventually("it is forgotten", async || {
            match other.lock("key").try_acquire().await {
                Ok(_) => Some(()),
                Err(LockError::Done { .. }) => None,
                Err(error) => panic!("{error:?}"),
            }
        })
        .await;
        nothing_left(&one).await;
    };
    unless_it_stands_still(time / 4, attempt).await;
}

pub(crate) async fn what_was_not_done_is_not_remembered(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    assert_eq!(does(once(&one), Err::<(), _>("no")).await, Err("no"));
    let panics = tokio::spawn(once(&other).run(async {
        if is_inside() {
            panic!("as it is meant to");
        }
        Ok::<_, ()>(())
    }));
    assert!(panics.await.expect_err("a panic").is_panic());
    let left = once(&one).run(async {
        sleep(10 * HANG).await;
        Ok::<_, ()>(())
    });
    let inside = async || is_busy_now(&other).await.then_some(());
    tokio::select! {
        _ = left => unreachable!("it sleeps"),
        () = eventually("it is inside", inside) => {}
    }
    // A lock without `once` leaves no mark.
    within(HANG, one.lock("key").run(async { Ok::<_, ()>(()) }))
        .await
        .expect("the lock")
        .expect("done");
    drop(held(once(&other)).await);
    held(once(&one)).await.release().await.expect("the release");
    nothing_left(&other).await;
    // Finally, one body succeeds.
    assert_eq!(does(once(&other), Ok::<_, ()>(7)).await, Ok(7));
    is_remembered(&one).await;
    forget(&one).await;
}

fn is_inside() -> bool {
    current().is_some()
}

async fn is_busy_now(manager: &LockManager) -> bool {
    match manager.lock("key").try_acquire().await {
        Ok(_) => false,
        Err(LockError::Busy { .. }) => true,
        Err(error) => panic!("{error:?}"),
    }
}

pub(crate) async fn a_lease_that_was_lost_marks_nothing(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let ttl = store.short_ttl();
    let late = once(&one).ttl(ttl).renew(false).on_lost(OnLost::Continue);
    let ran = late.run(async {
        sleep(2 * ttl).await;
        assert!(!current().expect("inside").is_held());
        Ok::<_, ()>(())
    });
    within(HANG, ran)
        .await
        .expect("the lock")
        .expect("it went on");
    // The lease was given back or has expired.
    had(&other, "key").await;
    nothing_left(&one).await;
}

/// The holder may or may not know it yet. By then the lock is free, another process has it, or
/// another process has done the body.
pub(crate) async fn a_lock_that_was_taken_away_is_not_marked(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let taken_away = async || {
        let guard = held(once(&one)).await;
        store.take_away("key").await;
        guard
    };
    is_lost(within(HANG, taken_away().await.release_done()).await);
    had(&other, "key").await;

    let guard = taken_away().await;
    let next = held(other.lock("key")).await;
    is_lost(within(HANG, guard.release_done()).await);
    is_busy(one.lock("key").try_acquire().await);
    next.release().await.expect("it is its own");
    had(&other, "key").await;

    for marks in [true, false] {
        let guard = taken_away().await;
        does(once(&other), Ok::<_, ()>(())).await.expect("done");
        let by = shown(&other, "key").await.done.expect("a mark").owner;
        let late = async {
            match marks {
                true => guard.release_done().await,
                false => guard.release().await,
            }
        };
        is_lost(within(HANG, late).await);
        let seen = shown(&other, "key").await;
        assert_eq!(seen.done.map(|done| done.owner), Some(by), "{marks}");
        forget(&other).await;
    }
    nothing_left(&one).await;
}

/// A task that the body spawned, and that outlives the body.
pub(crate) async fn a_task_inside_says_that_it_is_done(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let inner = one.clone();
    let (ends, may_end) = oneshot::channel();
    let spawned = one.lock("key").run(async move {
        let (inside, is_inside) = oneshot::channel();
        let task = async move {
            let work = once(&inner).run(async move {
                inside.send(()).expect("the body");
                may_end.await.expect("the test");
                Ok::<_, ()>(())
            });
            work.await
        };
        let task = tokio::spawn(task.in_lock_scope());
        is_inside.await.expect("it re-enters");
        [task]
    });
    let [task] = within(HANG, spawned).await.expect("the lock");
    is_busy(other.lock("key").try_acquire().await);
    ends.send(()).expect("the task");
    let done = within(HANG, task).await.expect("no panic");
    assert!(matches!(done, Ok(Ok(()))), "{done:?}");
    is_remembered(&other).await;
    forget(&other).await;
}

/// A mark for which the caller did not wait.
pub(crate) async fn a_shutdown_waits_for_a_mark(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let guard = held(once(&one)).await;
    // Polled once, and dropped.
    let _ = timeout(Duration::ZERO, guard.release_done()).await;
    within(HANG, one.shutdown()).await;
    is_remembered(&other).await;
    forget(&other).await;
}

/// Waiters of all processes and modes are woken, and none gets the lock.
pub(crate) async fn who_waits_for_what_was_done_is_told(store: &mut dyn Store) {
    let Some(processes) = processes(store).await else {
        return;
    };
    // A place that nobody gives back is gone when its process is taken for dead, so they are to be
    // gone sooner.
    unless_it_stands_still(PASSED_OVER / 3, async || {
        all_are_told(store, &processes).await
    })
    .await;
}

async fn all_are_told(store: &dyn Store, [holder, first, second, third]: &[LockManager; 4]) {
    // What an attempt before has left.
    let _ = third.forget("key").await;
    let guard = held(once(holder)).await;
    let mut waiting = JoinSet::new();
    let mut requests = vec![first.lock("key"), second.lock("key")];
    if holder.capabilities().read_write {
        requests.push(third.lock("key").read());
    }
    if holder.capabilities().permits {
        requests.push(first.lock("key").permits(2));
    }
    let fair = holder.capabilities().fair;
    for (before, request) in requests.into_iter().enumerate() {
        waiting.spawn(request.acquire());
        if fair {
            queued(store, holder, "key", before + 1).await;
        }
    }
    waiting.spawn(
        second
            .lock("key")
            .run(async { panic!("nobody runs it") })
            .map_ok_drop(),
    );
    guard.release_done().await.expect("the release");
    while let Some(told) = within(HANG, waiting.join_next()).await {
        is_done(told.expect("no panic"));
    }
    // Some are told first, and leave their place in the background.
    within(2 * PASSED_OVER, queued(store, holder, "key", 0)).await;
    forget(third).await;
    had(second, "key").await;
}

/// Gives all answers the same type.
trait MapOkDrop {
    fn map_ok_drop(self) -> impl Future<Output = Result<dlock::LockGuard, LockError>> + Send;
}

impl<F: Future<Output = Result<(), LockError>> + Send> MapOkDrop for F {
    async fn map_ok_drop(self) -> Result<dlock::LockGuard, LockError> {
        match self.await {
            Ok(()) => unreachable!("nobody runs it"),
            Err(error) => Err(error),
        }
    }
}

/// Repeated many times. With a store that misses notifications, or only looks from time to time,
/// this would not end in time.
pub(crate) async fn who_waits_is_told_at_once(store: &mut dyn Store) {
    let Some([holder, other]) = processes(store).await else {
        return;
    };
    let fair = holder.capabilities().fair;
    let rounds = async {
        for _ in 0..store.hand_overs() / 2 {
            let guard = held(once(&holder)).await;
            let waiting = tokio::spawn(other.lock("key").acquire());
            if fair {
                queued(store, &holder, "key", 1).await;
            }
            guard.release_done().await.expect("the release");
            is_done(waiting.await.expect("no panic"));
            forget(&other).await;
        }
    };
    within(HANG, rounds).await;
}

/// The lock is not handed over to them.
pub(crate) async fn tasks_that_wait_for_what_was_done_are_told(store: &mut dyn Store) {
    let Some([manager]) = processes(store).await else {
        return;
    };
    let ran = Arc::new(AtomicUsize::new(0));
    let mut all = JoinSet::new();
    for _ in 0..20 {
        let (lock, ran) = (once(&manager), Arc::clone(&ran));
        all.spawn(lock.run(async move {
            // The other tasks come meanwhile.
            sleep(Duration::from_millis(50)).await;
            // The first body fails, and the lock goes to the next task.
            match ran.fetch_add(1, Relaxed) {
                0 => Err("the first"),
                _ => Ok(()),
            }
        }));
    }
    let (mut done, mut told) = (Vec::new(), 0);
    while let Some(one) = within(HANG, all.join_next()).await {
        match one.expect("no panic") {
            Ok(output) => done.push(output),
            error => {
                is_done(error);
                told += 1;
            }
        }
    }
    done.sort_unstable();
    assert_eq!((done, told), (vec![Ok(()), Err("the first")], 18));
    assert_eq!(ran.load(Relaxed), 2);
    forget(&manager).await;
}

pub(crate) async fn inside_another_it_is_remembered_when_that_ends(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let inside = async || {
        does(once(&one), Ok::<_, ()>(())).await.expect("done");
        is_busy(other.lock("key").try_acquire().await);
        // A call inside the outer lock still re-enters it.
        drop(held(one.lock("key")).await);
    };
    let outer = one.lock("key").run(async { inside().await });
    within(HANG, outer).await.expect("the lock");
    is_remembered(&other).await;
    forget(&other).await;

    // The outermost body decides.
    let outer = once(&one).run(async {
        inside().await;
        Err::<(), _>("it came to nothing")
    });
    let failed = within(HANG, outer).await.expect("the lock");
    assert!(failed.is_err());
    had(&other, "key").await;

    // With one of several keys that are held together.
    let several = one.lock(["key", "other"]).run(async { inside().await });
    within(HANG, several).await.expect("the locks");
    is_remembered(&other).await;
    had(&other, "other").await;
    forget(&one).await;
}

/// Runs a body under the lock, to run once or not.
async fn around(
    is_once: bool,
    manager: &LockManager,
    body: Pin<&mut (dyn Future<Output = ()> + Send)>,
) {
    let ran = match is_once {
        true => {
            let body = async {
                body.await;
                Ok::<_, ()>(())
            };
            once(manager).run(body).await.map(drop)
        }
        false => manager.lock("key").run(body).await,
    };
    ran.expect("the lock");
}

/// Only the outer body decides whether everything is done.
pub(crate) async fn one_around_it_that_does_not_come_to_its_end_undoes_it(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let inside = async |manager: &LockManager| {
        does(once(manager), Ok::<_, ()>(())).await.expect("done");
    };

    // Whether the body around it is to run once too.
    for is_once in [true, false] {
        let (tells, told) = oneshot::channel();
        let waits = pin!(async {
            inside(&one).await;
            tells.send(()).expect("somebody listens");
            std::future::pending().await
        });
        tokio::select! {
            biased;
            () = around(is_once, &one, waits) => panic!("it has ended"),
            told = within(HANG, told) => told.expect("it is inside"),
        }
        had(&other, "key").await;

        let manager = one.clone();
        let outer = tokio::spawn(async move {
            let panics = pin!(async {
                inside(&manager).await;
                panic!("the body's own")
            });
            around(is_once, &manager, panics).await;
        });
        let panicked = within(HANG, outer).await.expect_err("the body's own");
        assert!(panicked.is_panic());
        had(&other, "key").await;
    }

    for is_released in [false, true] {
        let outer = one.lock("key").run(async {
            let guard = held(once(&one)).await;
            inside(&one).await;
            match is_released {
                true => guard.release().await.expect("it is held"),
                false => drop(guard),
            }
        });
        within(HANG, outer).await.expect("the lock");
        had(&other, "key").await;
    }
    nothing_left(&one).await;
}

/// Even if the store still has the lease for a moment after its holder has stopped relying on it.
pub(crate) async fn what_is_lost_behind_it_is_not_remembered(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let fixed = || one.lock("key").ttl(store.short_ttl()).renew(false);
    let attempt = async || {
        // An earlier attempt may have left a mark: its lease ended before the body inside began.
        one.forget("key").await.expect("forget");
        let outer = fixed().on_lost(OnLost::Continue).run(async {
            let done = does(once(&one), Ok::<_, ()>(())).await;
            let lock = current().expect("inside");
            within(HANG, lock.lost()).await;
            done
        });
        let ran = within(HANG, outer).await;
        assert!(matches!(ran, Ok(Ok(()))), "{ran:?}");
        had(&other, "key").await;
    };
    unless_it_stands_still(store.short_ttl() / 4, attempt).await;
    nothing_left(&one).await;
}

pub(crate) async fn a_guard_says_that_it_is_done(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let guard = held(once(&one)).await;
    guard.release_done().await.expect("the release");
    is_remembered(&other).await;
    forget(&other).await;
    // This request does not say for how long.
    let error = is_misconfigured(held(one.lock("key")).await.release_done().await);
    says(&error, &["once"]);
    had(&other, "key").await;
    nothing_left(&one).await;
}

/// Until then nobody gets the lock, and nobody waits in vain.
pub(crate) async fn min_hold_is_kept_by_the_mark(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let short = one.lock("key").once(Duration::from_secs(1));
    let lock = short.min_hold(REMEMBERED);
    does(lock, Ok::<_, ()>(())).await.expect("done");
    is_remembered(&other).await;
    sleep(Duration::from_secs(3)).await;
    is_remembered(&other).await;
    forget(&other).await;
}

#[distributed_lock(key = "key", once = "1h", try)]
async fn job(fails: bool) -> Result<u32, LockError> {
    match fails {
        // As a body would fail that asks for another lock.
        true => Err(dlock::lock("").try_acquire().await.expect_err("no key")),
        false => Ok(7),
    }
}

#[distributed_lock(key = "key", once = "1h", on_error = |error| error.to_string())]
async fn returns_no_result() -> String {
    "done".to_owned()
}

pub(crate) async fn the_attribute_runs_its_body_once(store: &mut dyn Store) {
    let Some([one, other]) = processes(store).await else {
        return;
    };
    let failed = within(HANG, one.scope(job(true))).await;
    assert!(
        matches!(failed, Err(LockError::InvalidKey { .. })),
        "{failed:?}"
    );
    let done = within(HANG, other.scope(job(false))).await;
    assert!(matches!(done, Ok(7)), "{done:?}");
    is_done(within(HANG, one.scope(job(false))).await);
    let told = within(HANG, one.scope(returns_no_result())).await;
    assert!(told.contains("`key`") && told.contains("once"), "{told}");
    forget(&one).await;
    assert_eq!(within(HANG, one.scope(returns_no_result())).await, "done");
    is_remembered(&other).await;
    forget(&one).await;
}

/// For a store that is reached over a network.
pub(crate) async fn a_mark_whose_answer_was_lost_is_made(store: &mut dyn Store) {
    let Some(past) = store.past_proxies() else {
        return;
    };
    let config = super::config(store).request_timeout(HANG / 2);
    let manager = connect(config).await;
    let witness = connect(past).await;
    if !manager.capabilities().once {
        return;
    }
    // The first time, a server may need a command in full.
    does(once(&manager), Ok::<_, ()>(())).await.expect("done");
    forget(&manager).await;
    let guard = held(once(&manager)).await;
    store
        .proxies()
        .iter()
        .for_each(|proxy| proxy.swallow_replies(true));
    let release = tokio::spawn(guard.release_done());
    // Some stores send another request first, whose answer is then lost.
    let marked = eventually("it is marked", async || {
        let seen = witness.inspect("key").await.expect("inspect");
        seen.and_then(|lock| lock.done)
    });
    let _ = timeout(2 * store.request_timeout(), marked).await;
    store.proxies().iter().for_each(|proxy| {
        proxy.swallow_replies(false);
        proxy.cut();
    });
    let released = within(HANG, release).await.expect("no panic");
    released.expect("its own mark is no other's");
    is_remembered(&witness).await;
    assert!(witness.forget("key").await.expect("forget"));
    had(&witness, "key").await;
}

/// The mark is tried again, as a release is.
pub(crate) async fn a_mark_is_made_up_for_after_an_outage(store: &mut dyn Store) {
    let config = || super::config(store).request_timeout(store.request_timeout());
    let manager = impatient(config).await;
    if !manager.capabilities().once {
        return;
    }
    let begun = AtomicUsize::new(0);
    // Before the outage, a busy machine may be taken for one.
    let ran = eventually("the body runs", async || {
        let body = async {
            begun.fetch_add(1, Relaxed);
            store.set_outage(true).await;
            Ok::<_, ()>("done")
        };
        match within(HANG, once(&manager).run(body)).await {
            Err(LockError::Unavailable { .. }) if begun.load(Relaxed) == 0 => None,
            answer => Some(answer),
        }
    })
    .await;
    assert!(matches!(ran, Ok(Ok("done"))), "{ran:?}");
    store.set_outage(false).await;
    eventually("it is marked", async || {
        let seen = manager.inspect("key").await.ok().flatten();
        seen.and_then(|lock| lock.done)
    })
    .await;
    // With a manager that does not give up so soon.
    forget(&process(store).await).await;
}

/// Twenty slots, and copies of the work that start early, late, and while another copy is
/// running. Every other slot fails at first.
pub(crate) async fn copies_that_come_whenever_do_it_once(store: &mut dyn Store) {
    let Some(managers) = processes::<3>(store).await else {
        return;
    };
    const SLOTS: usize = 20;
    let done: Arc<Vec<AtomicUsize>> = Arc::new((0..SLOTS).map(|_| AtomicUsize::new(0)).collect());
    let failed: Arc<Vec<AtomicUsize>> = Arc::new((0..SLOTS).map(|_| AtomicUsize::new(0)).collect());
    let mut copies = JoinSet::new();
    for (copy, manager) in managers.iter().cycle().take(6).enumerate() {
        let (manager, done, failed) = (manager.clone(), Arc::clone(&done), Arc::clone(&failed));
        copies.spawn(async move {
            sleep(Duration::from_millis(20 * copy as u64)).await;
            for slot in 0..SLOTS {
                let lock = manager.lock(format!("slot:{slot}")).once(REMEMBERED);
                let body = async {
                    tokio::task::yield_now().await;
                    if slot % 2 == 0 && failed[slot].fetch_add(1, Relaxed) == 0 {
                        return Err("the first fails");
                    }
                    done[slot].fetch_add(1, Relaxed);
                    Ok(())
                };
                match within(HANG, lock.run(body)).await {
                    Ok(_) | Err(LockError::Done { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }
    while let Some(copy) = within(HANG, copies.join_next()).await {
        copy.expect("no panic");
    }
    assert!(done.iter().all(|done| done.load(Relaxed) == 1), "{done:?}");
    for slot in 0..SLOTS {
        let forgotten = managers[0].forget(format!("slot:{slot}")).await;
        assert!(forgotten.expect("forget"), "slot {slot}");
    }
    nothing_left(&managers[0]).await;
}
