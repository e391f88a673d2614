//! Guarantee 9: nothing waits without a limit, an outage is reported as one, and the store is
//! used again by itself after it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use dlock::{LockError, LockKey, LockManager, LockRequest};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::{Store, connect, free, had, held, nothing_left, process, queued};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    self, healed, healed_at, held_at_last, is_busy, is_late, is_lost, is_unavailable, says, served,
};
use crate::support::polls::{Polled, leave_at_poll};
use crate::support::wait::{HANG, eventually, until, within};

/// Shorter than the time in which the store may answer.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A process that soon takes silence for an outage. Another process connects first, since setting
/// up the store, such as creating tables, may take longer.
async fn impatient(store: &dyn Store) -> LockManager {
    process(store).await.shutdown().await;
    let timeout = store.request_timeout();
    locks::impatient(|| super::config(store).request_timeout(timeout)).await
}

pub(crate) async fn an_outage_is_its_own_error(store: &mut dyn Store) {
    let manager = impatient(store).await;
    // The error names the server, if there is only one.
    let server = match store.proxies() {
        [_] => "127.0.0.1:",
        _ => "",
    };
    // With a connection that was used, and without one.
    for key in ["used", "new"] {
        store.set_outage(true).await;
        let ran = AtomicBool::new(false);
        let body = async { ran.store(true, Relaxed) };
        let lock = || manager.lock(key);
        for answer in [
            within(HANG, lock().acquire()).await.map(drop),
            within(HANG, lock().try_acquire()).await.map(drop),
            within(HANG, lock().run(body)).await,
        ] {
            says(&is_unavailable(answer), &[&format!("`{key}`"), server]);
        }
        if !store.can_be_read_in_an_outage() {
            for answer in [
                within(HANG, manager.inspect(key)).await.map(drop),
                within(HANG, manager.list("")).await.map(drop),
                within(HANG, manager.ping()).await,
            ] {
                says(&is_unavailable(answer), &[server]);
            }
        }
        assert!(!ran.load(Relaxed), "the body ran without the lock");
        store.set_outage(false).await;
        healed(&manager).await;
        let ready = async || manager.ping().await.ok();
        eventually("it is ready again", ready).await;
    }
}

pub(crate) async fn a_timeout_bounds_an_outage(store: &mut dyn Store) {
    // With the request timeout alone it would wait longer than any test.
    let patient = connect(super::config(store).request_timeout(10 * HANG)).await;
    store.set_outage(true).await;
    let waits = patient.lock("key").acquire_within(TIMEOUT);
    let error = within(HANG, waits).await.expect_err("an outage");
    // Which of the two comes first depends on how the outage shows.
    assert!(
        matches!(
            error,
            LockError::Unavailable { .. } | LockError::Timeout { .. }
        ),
        "{error:?}"
    );
    store.set_outage(false).await;
}

/// Whatever the call has to ask, and whether or not there is a connection.
pub(crate) async fn a_try_takes_one_request_timeout_of_silence(store: &mut dyn Store) {
    const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
    // Less than twice the request timeout.
    const LIMIT: Duration = Duration::from_secs(7);
    process(store).await.shutdown().await;
    let attempt = async || {
        store.set_silence(false).await;
        takes_no_longer(store, REQUEST_TIMEOUT, LIMIT).await;
    };
    // This takes many turns of several threads, each of which a busy machine delays.
    unless_it_stands_still(Duration::from_millis(100), attempt).await;
}

async fn takes_no_longer(store: &dyn Store, request_timeout: Duration, limit: Duration) {
    let patient = async || {
        let config = super::config(store).request_timeout(request_timeout);
        let manager = connect(config).await;
        had(&manager, "used").await;
        manager
    };
    let (writer, reader) = (patient().await, patient().await);
    store.set_silence(true).await;
    let tries = async |lock: &dyn Fn() -> LockRequest| {
        for _ in ["over a connection that was used", "over none, as a rule"] {
            is_unavailable(within(limit, lock().try_acquire()).await);
        }
    };
    let reads = async {
        if reader.capabilities().read_write {
            tries(&|| reader.lock("other").read()).await;
        }
    };
    let writes = async { tries(&|| writer.lock("key")).await };
    tokio::join!(writes, reads);
    store.set_silence(false).await;
    for manager in [&writer, &reader] {
        healed(manager).await;
    }
}

/// If the machine stands still this long at each of the many turns that an answer takes, an
/// impatient manager does not get it in time.
fn too_still(store: &dyn Store) -> Duration {
    store.request_timeout() / 10
}

pub(crate) async fn a_store_that_comes_back_serves_again(store: &mut dyn Store) {
    let attempt = async || {
        store.set_outage(false).await;
        serves_again(store).await;
    };
    unless_it_stands_still(too_still(store), attempt).await;
}

async fn serves_again(store: &dyn Store) {
    // A waiter that is impatient may take a busy machine for an outage.
    let (manager, other) = (impatient(store).await, process(store).await);
    for _ in 0..3 {
        healed_at(&manager, "key").await;
        store.set_outage(true).await;
        is_unavailable(within(HANG, manager.lock("key").acquire()).await);
        store.set_outage(false).await;
        healed(&manager).await;
        healed(&other).await;
        // The notification of releases works again as well.
        let guard = held_at_last(|| manager.lock("key")).await;
        let waiting = tokio::spawn(other.lock("key").run(async {}));
        queued(store, &other, "key", 1).await;
        guard.release().await.expect("the release");
        served(waiting).await;
    }
    nothing_left(&manager).await;
}

pub(crate) async fn a_lease_outlives_a_short_outage(store: &mut dyn Store) {
    let attempt = async || {
        store.set_outage(false).await;
        outlives_a_short_outage(store).await;
    };
    unless_it_stands_still(too_still(store), attempt).await;
}

/// Runs this body once. Before that, an impatient manager may take a busy machine for an outage,
/// and a short lease may end.
async fn ran<T>(
    lock: impl Fn() -> LockRequest,
    body: impl AsyncFnOnce() -> T,
) -> Result<T, LockError> {
    let mut body = Some(body);
    eventually("the body runs", async || {
        let once = async { body.take().expect("a body that has not run")().await };
        match within(HANG, lock().run(once)).await {
            Err(LockError::Unavailable { .. } | LockError::Lost { .. }) if body.is_some() => None,
            answer => Some(answer),
        }
    })
    .await
}

async fn outlives_a_short_outage(store: &dyn Store) {
    let (manager, other) = (impatient(store).await, process(store).await);
    // Long enough for renewals to fail and be tried again, also where the shortest is long.
    let short = store.short_ttl();
    let ttl = (5 * short).min(Duration::from_secs(6)).max(2 * short);
    let guard = held_at_last(|| manager.lock("key").ttl(ttl)).await;
    let start = Instant::now();
    store.set_outage(true).await;
    sleep(ttl / 2).await;
    store.set_outage(false).await;
    // Longer than the lease that it had when the outage began. Only a renewal since then can have
    // extended it.
    sleep((ttl * 3 / 2).saturating_sub(start.elapsed())).await;
    assert!(guard.is_held());
    healed(&other).await;
    is_busy(other.lock("key").try_acquire().await);
    guard.release().await.expect("the release");
}

pub(crate) async fn a_lease_does_not_outlive_a_long_outage(store: &mut dyn Store) {
    does_not_outlive(store, async |outage| store.set_outage(outage).await).await;
}

/// Connections stay open, and there is no error. Only the last confirmation of the lease by the
/// store counts.
pub(crate) async fn a_lease_does_not_outlive_a_long_silence(store: &mut dyn Store) {
    does_not_outlive(store, async |silence| store.set_silence(silence).await).await;
}

async fn does_not_outlive(store: &dyn Store, set: impl AsyncFn(bool)) {
    let (manager, other) = (impatient(store).await, process(store).await);
    let ttl = store.short_ttl();
    let guard = held_at_last(|| manager.lock("guard").ttl(ttl)).await;
    let went_on = AtomicBool::new(false);
    let body = async || {
        set(true).await;
        sleep(2 * HANG).await;
        went_on.store(true, Relaxed);
    };
    is_lost(ran(|| manager.lock("body").ttl(ttl), body).await);
    within(HANG, guard.lost()).await;
    assert!(!guard.is_held() && !went_on.load(Relaxed));
    if !store.can_be_read_in_an_outage() {
        is_unavailable(within(HANG, manager.lock("new").acquire()).await);
    }
    set(false).await;
    for manager in [&manager, &other] {
        healed(manager).await;
    }
    for key in ["guard", "body", "new"] {
        free(&other, key).await;
    }
}

/// It is told of the outage, or continues to wait and gets the lock afterwards.
pub(crate) async fn a_waiter_does_not_hang_in_an_outage(store: &mut dyn Store) {
    let (holder, other) = (impatient(store).await, impatient(store).await);
    let patient = process(store).await;
    let guard = held_at_last(|| holder.lock("key")).await;
    // It may take a busy machine for an outage before there is one.
    let waiting = eventually("it waits", async || {
        let waiting = tokio::spawn(other.lock("key").run(async {}));
        let is_queued = async || store.waiters(&patient, "key").await == 1;
        let waits = async || is_queued().await || waiting.is_finished();
        until("it waits or was told", waits, |&waits| waits).await;
        if waiting.is_finished() {
            is_unavailable(within(HANG, waiting).await.expect("no panic"));
            return None;
        }
        Some(waiting)
    })
    .await;
    store.set_outage(true).await;
    sleep(2 * store.request_timeout()).await;
    store.set_outage(false).await;
    healed(&holder).await;
    let _ = guard.release().await;
    served_or_told(waiting).await;
    healed_at(&other, "key").await;
    nothing_left(&other).await;
}

/// Locks that were released during an outage are free soon after it, long before their leases
/// would expire.
pub(crate) async fn a_release_is_made_up_for_after_an_outage(store: &mut dyn Store) {
    let (manager, other) = (impatient(store).await, process(store).await);
    let dropped = held_at_last(|| manager.lock("dropped")).await;
    let released = held_at_last(|| manager.lock("released")).await;
    let body = async || {
        store.set_outage(true).await;
        "value"
    };
    // A failed release does not discard the body's result.
    let value = ran(|| manager.lock("ran"), body).await;
    assert_eq!(value.expect("the body's value"), "value");
    drop(dropped);
    is_unavailable(within(HANG, released.release()).await);
    store.set_outage(false).await;
    healed(&other).await;
    for key in ["dropped", "released", "ran"] {
        free(&other, key).await;
    }
}

/// Another task of the process has asked the store, which does not answer.
pub(crate) async fn a_try_behind_a_task_that_asks_is_told_of_the_outage(store: &mut dyn Store) {
    let manager = impatient(store).await;
    healed_at(&manager, "key").await;
    store.set_outage(true).await;
    let mut calls = JoinSet::new();
    for waits in [true, false, false, false] {
        let lock = manager.lock("key");
        let (begun, begins) = oneshot::channel();
        calls.spawn(async move {
            let mut call = Box::pin(async move {
                match waits {
                    true => lock.acquire().await,
                    false => lock.try_acquire().await,
                }
            });
            let first = leave_at_poll(&mut call, 1, HANG).await;
            let _ = begun.send(());
            match first {
                Polled::Done(answer) => answer,
                _ => call.await,
            }
        });
        begins.await.expect("it was polled");
    }
    for answer in within(HANG, calls.join_all()).await {
        is_unavailable(answer);
    }
    store.set_outage(false).await;
    healed(&manager).await;
    nothing_left(&manager).await;
}

/// Calls begin in an outage while another process holds the lock, behind a call of their own
/// process that was told so. What that call was told is from before the outage.
pub(crate) async fn calls_behind_others_tell_an_outage(store: &mut dyn Store) {
    let holder = process(store).await;
    // The waiting call is patient, so it reports no outage to those behind it.
    let patient = connect(super::config(store).request_timeout(10 * HANG)).await;
    let guard = held(holder.lock("key")).await;
    let waiting = tokio::spawn(patient.lock("key").run(async {}));
    queued(store, &holder, "key", 1).await;
    // On a busy machine an answer may take some time. Without one, it would be an outage.
    let limit = 4 * TIMEOUT;
    let waits = async || {
        is_late(within(HANG, patient.lock("key").acquire_within(limit)).await);
    };
    unless_it_stands_still(limit / 10, waits).await;
    is_busy(within(HANG, patient.lock("key").try_acquire()).await);
    store.set_outage(true).await;
    hear_of_it(store, &patient, 8).await;
    store.set_outage(false).await;
    healed(&holder).await;
    let _ = guard.release().await;
    served_or_told(waiting).await;
    healed(&patient).await;
    had(&patient, "key").await;
}

/// This many calls, whose time ends before the store answers, are told of an outage.
async fn hear_of_it(store: &dyn Store, manager: &LockManager, count: usize) {
    let mut calls = JoinSet::new();
    for _ in 0..count {
        calls.spawn(manager.lock("key").acquire_within(TIMEOUT));
    }
    for answer in within(HANG, calls.join_all()).await {
        assert!(answer.is_err(), "no answer");
        if !store.can_be_read_in_an_outage() {
            is_unavailable(answer);
        }
    }
}

/// A waiter got the lock, or was told of the outage.
async fn served_or_told(waiting: JoinHandle<Result<(), LockError>>) {
    let waited = within(HANG, waiting).await.expect("no panic");
    if waited.is_err() {
        is_unavailable(waited);
    }
}

/// Another task of the process had the lock, and the store does not answer its release.
pub(crate) async fn calls_behind_a_release_tell_an_outage(store: &mut dyn Store) {
    let config = super::config(store).request_timeout(10 * HANG);
    let patient = connect(config).await;
    let guard = held(patient.lock("key")).await;
    store.set_silence(true).await;
    let mut release = Box::pin(guard.release());
    // The calls come after it.
    let begun = leave_at_poll(&mut release, 1, HANG).await;
    let goes_on = (!matches!(begun, Polled::Done(_))).then(|| tokio::spawn(release));
    hear_of_it(store, &patient, 4).await;
    store.set_silence(false).await;
    if let Some(goes_on) = goes_on {
        goes_on.abort();
    }
    healed(&patient).await;
}

/// The number of keys; the release of each would wait for the store.
const MANY: usize = 20;

/// How long all of them may take together: far less than one after the other.
fn side_by_side(store: &dyn Store) -> Duration {
    store.request_timeout() * MANY as u32 / 2
}

fn many(name: &str) -> LockKey {
    let keys = (0..MANY).map(|number| format!("{name}:{number}"));
    keys.collect::<Vec<_>>().into()
}

pub(crate) async fn many_releases_wait_for_one_outage(store: &mut dyn Store) {
    let attempt = async || {
        store.set_outage(false).await;
        releases_wait_for_one_outage(store).await;
    };
    unless_it_stands_still(too_still(store), attempt).await;
}

async fn releases_wait_for_one_outage(store: &dyn Store) {
    let manager = impatient(store).await;
    // On a busy machine, the first connection to a server may take several attempts.
    healed(&manager).await;
    let guard = held_at_last(|| manager.lock(many("guard"))).await;
    let mut start = Instant::now();
    let body = async || {
        store.set_outage(true).await;
        start = Instant::now();
    };
    let ran = ran(|| manager.lock(many("body")), body).await;
    ran.expect("the body ran");
    assert!(start.elapsed() < side_by_side(store), "a body's");
    let start = Instant::now();
    is_unavailable(within(HANG, guard.release()).await);
    assert!(start.elapsed() < side_by_side(store), "a guard's");
    store.set_outage(false).await;
    healed(&manager).await;
    nothing_left(&manager).await;
}

/// The leases expire meanwhile, and the shutdown waits no longer than that.
pub(crate) async fn a_shutdown_waits_for_one_outage(store: &mut dyn Store) {
    let attempt = async || {
        store.set_outage(false).await;
        shutdown_waits_for_one_outage(store).await;
    };
    unless_it_stands_still(too_still(store), attempt).await;
}

async fn shutdown_waits_for_one_outage(store: &dyn Store) {
    let manager = impatient(store).await;
    let mut guards = Vec::new();
    for number in 0..MANY {
        let lock = manager.lock(format!("key:{number}"));
        guards.push(held_at_last(|| lock.clone().ttl(store.short_ttl())).await);
    }
    store.set_outage(true).await;
    let start = Instant::now();
    drop(guards);
    within(HANG, manager.shutdown()).await;
    let limit = store.short_ttl() + side_by_side(store);
    assert!(start.elapsed() < limit, "after {:?}", start.elapsed());
    store.set_outage(false).await;
}
