//! Guarantees 4, 5 and 11: however the body ends, the lock is given back, only by its owner, and
//! nothing is left behind.

use std::time::{Duration, Instant};

use dlock::{LockError, LockManager, LockRequest, distributed_lock};
use tokio::sync::oneshot;

use super::{Store, free, had, nothing_left, process};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{held, is_busy, is_lost, is_shut_down, shown};
use crate::support::wait::{HANG, eventually, until, within};

/// A store may round leases up by this much: those of etcd last at least two seconds.
pub(crate) const ROUNDED_UP: Duration = Duration::from_secs(2);

#[distributed_lock(key = "key")]
async fn fail(why: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Err(why)?;
    unreachable!()
}

pub(crate) async fn a_value_releases(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let value = manager.lock("key").run(async { "value" }).await;
    assert_eq!(value.expect("the lock"), "value");
    // Immediately, not only some time later.
    assert!(other.inspect("key").await.expect("inspect").is_none());
}

pub(crate) async fn an_error_releases(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let error = manager.scope(fail("the body's own")).await;
    let error = error.expect_err("the body's error");
    assert_eq!(error.to_string(), "the body's own");
    assert!(other.inspect("key").await.expect("inspect").is_none());
}

pub(crate) async fn a_panic_releases(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let panics = async { panic!("the body's own") };
    let ended: Result<Result<(), LockError>, _> =
        tokio::spawn(manager.lock("key").run(panics)).await;
    assert!(ended.expect_err("the body's panic").is_panic());
    free(&other, "key").await;
    // The manager still works.
    had(&manager, "key").await;
}

pub(crate) async fn a_dropped_body_releases(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let (inside, is_inside) = oneshot::channel();
    let body = tokio::spawn(manager.lock("key").run(async {
        inside.send(()).expect("the test waits");
        std::future::pending::<()>().await;
    }));
    is_inside.await.expect("the body runs");
    is_busy(other.lock("key").try_acquire().await);
    body.abort();
    had(&other, "key").await;
}

pub(crate) async fn a_dropped_guard_releases(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    drop(held(manager.lock("key")).await);
    had(&other, "key").await;
}

/// Not before its ttl has passed, and not much later.
pub(crate) async fn a_holder_that_died_frees_it_within_its_ttl(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let ttl = store.short_ttl();
    let start = Instant::now();
    dies(manager.lock("key").ttl(ttl)).await;
    ends_with_its_ttl(&other, ttl, 0).await;
    let guard = held(other.lock("key")).await;
    // The rates of clocks may differ by 1%.
    let had = start.elapsed();
    assert!(had >= ttl.mul_f64(0.98), "had after {had:?} of {ttl:?}");
    assert!(guard.is_held());
}

/// How many dead holders may free their lock late because the machine stood still.
const TRIES: usize = 5;

/// The next one has the lock soon after the ttl, whatever the store says of the lease.
pub(crate) async fn a_holder_that_died_keeps_it_no_longer(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let capabilities = manager.capabilities();
    let ttl = capabilities.min_ttl.max(store.short_ttl() / 2);
    let limit = ttl + ROUNDED_UP + capabilities.ttl_step;
    let mut lasted = Vec::new();
    for attempt in 0..TRIES {
        let key = format!("key:{attempt}");
        had(&other, &key).await;
        // Granted too late, it is not had.
        let died = async || dies(manager.lock(&key).ttl(ttl)).await;
        unless_it_stands_still(ttl / 4, died).await;
        let granted = Instant::now();
        // Asked again and again: how soon a waiter is let in depends on more than the lease.
        let next = eventually("the lease ends", async || {
            match other.lock(&key).try_acquire().await {
                Ok(next) => Some(next),
                Err(LockError::Busy { .. }) => None,
                Err(error) => panic!("{error:?}"),
            }
        });
        next.await.release().await.expect("the release");
        let had = granted.elapsed();
        if had <= limit {
            return;
        }
        lasted.push(had);
    }
    panic!("leases of {ttl:?} have lasted {lasted:?}");
}

/// Takes the lock, and neither renews it nor gives it back.
pub(crate) async fn dies(request: LockRequest) {
    let guard = held(request.renew(false)).await;
    // Nothing is given back.
    std::mem::forget(guard);
}

/// Checks that the first lease of `key` to end, that of a dead holder, ends with its ttl: by the
/// store's own account, so that it does not matter when this runs. If leases belong to a session,
/// the store does not report it. So many `others` are inside beside it.
pub(crate) async fn ends_with_its_ttl(manager: &LockManager, ttl: Duration, others: usize) {
    let Some(lock) = manager.inspect("key").await.expect("inspect") else {
        return;
    };
    // Their leases outlast every test. On a slow machine, that of the dead may have ended.
    if lock.holders.len() <= others {
        return;
    }
    let left = lock.holders.iter().map(|holder| holder.expires_in);
    let Some(left) = left.min().flatten() else {
        return;
    };
    assert!(left <= ttl + ROUNDED_UP, "{left:?} are left of {ttl:?}");
}

pub(crate) async fn a_late_release_changes_nothing(store: &mut dyn Store) {
    let (late, other) = (process(store).await, process(store).await);
    let guard = held(late.lock("key").ttl(store.short_ttl()).renew(false)).await;
    let mut next = held(other.lock("key")).await;
    for _ in 0..2 {
        assert!(!guard.is_held());
    }
    let owner = owner(&other).await;
    let error = is_lost(guard.release().await);
    assert!(error.to_string().contains("`key`"), "{error}");
    assert_eq!(self::owner(&other).await, owner);
    is_busy(late.lock("key").try_acquire().await);
    assert!(next.is_held());
    next.release().await.expect("the release");
    // Dropping a guard whose lease has ended is also a late release.
    let guard = held(late.lock("key").ttl(store.short_ttl()).renew(false)).await;
    next = held(other.lock("key")).await;
    drop(guard);
    late.shutdown().await;
    assert!(next.is_held());
    next.release().await.expect("the release");
}

async fn owner(manager: &LockManager) -> String {
    let shown = shown(manager, "key").await;
    let [holder] = shown.holders.as_slice() else {
        panic!("one holder, not {shown:?}")
    };
    holder.owner.clone()
}

/// A renewal neither brings back a lease that was taken away, nor touches the lease of the
/// present holder.
pub(crate) async fn a_foreign_lease_is_not_touched(store: &mut dyn Store) {
    // The lease must not end before it is taken away.
    let too_still = store.short_ttl() / 4;
    unless_it_stands_still(too_still, async || is_not_touched(store).await).await;
}

async fn is_not_touched(store: &dyn Store) {
    let (loser, other) = (process(store).await, process(store).await);
    let ttl = store.short_ttl();
    let guard = held(loser.lock("key").ttl(ttl)).await;
    store.take_away("key").await;
    let next = held(other.lock("key")).await;
    let owner = owner(&other).await;
    within(HANG, guard.lost()).await;
    assert!(!guard.is_held());
    let _ = guard.release().await;
    assert_eq!(self::owner(&other).await, owner);
    assert!(next.is_held());
    next.release().await.expect("its own lease");
    nothing_left(&other).await;
}

pub(crate) async fn min_hold_keeps_it(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let least = Duration::from_millis(700);
    let start = Instant::now();
    let kept = manager.lock("key").min_hold(least).run(async {});
    kept.await.expect("the lock");
    let early = other.lock("key").try_acquire().await;
    if start.elapsed() < least {
        is_busy(early);
    } else {
        drop(early);
    }
    had(&other, "key").await;
    let had = start.elapsed();
    assert!(had >= least, "had after {had:?} of {least:?}");
}

/// The process may end directly after the body.
pub(crate) async fn the_store_knows_of_min_hold_when_the_body_has_ended(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let ttl = store.short_ttl();
    let mut keys = (0..).map(|number: usize| number.to_string());
    for _ in 0..20 {
        unless_it_stands_still(ttl / 4, async || {
            let key = keys.next().expect("endless");
            let request = manager.lock(&*key).ttl(ttl);
            let request = request.min_hold(Duration::from_secs(600));
            request.run(async {}).await.expect("the lock");
            // Checked at once, without waiting.
            let lock = shown(&other, &key).await;
            if let Some(left) = lock.holders[0].expires_in {
                assert!(left > ttl, "its lease ends in {left:?}");
            }
        })
        .await;
    }
}

pub(crate) async fn shutdown_finishes_what_is_under_way(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    for number in 0..20 {
        drop(held(manager.lock(format!("key:{number}"))).await);
    }
    within(HANG, manager.shutdown()).await;
    // Checked at once: all locks have been given back.
    assert!(other.list("").await.expect("list").is_empty());
    is_shut_down(manager.lock("key").acquire().await);
}

/// Guarantee 11: the store keeps nothing about a lock for longer than its ttl.
pub(crate) async fn nothing_is_left_behind(store: &mut dyn Store) {
    let (manager, other) = (process(store).await, process(store).await);
    let ttl = store.short_ttl();
    // What the store keeps for all locks together exists after the first lock.
    let had = async |manager: &LockManager, key: &str| {
        eventually("it has the lock", async || {
            match manager.lock(key).ttl(ttl).run(async {}).await {
                // On a busy machine, some of these many calls may take long.
                Err(LockError::Unavailable { .. } | LockError::Lost { .. }) => None,
                ran => {
                    ran.expect("the lock");
                    Some(())
                }
            }
        })
        .await;
    };
    for manager in [&manager, &other] {
        had(manager, "first").await;
    }
    let Some(before) = store.records().await else {
        return;
    };

    for number in 0..100 {
        had(&manager, &format!("released:{number}")).await;
    }
    for number in 0..20 {
        // Waited for, given up, and held by a guard that never releases it.
        let key = format!("abandoned:{number}");
        std::mem::forget(held(manager.lock(&key).ttl(ttl).renew(false)).await);
        let waiting = tokio::spawn(other.lock(&key).ttl(ttl).acquire());
        // On a busy machine the lease may have expired first.
        let queued = async || waiting.is_finished() || store.waiters(&manager, &key).await == 1;
        until("it waits", queued, |&queued| queued).await;
        waiting.abort();
    }
    let records = async || store.records().await.expect("a store that counts");
    until("the records are gone", records, |&left| left <= before).await;
}
