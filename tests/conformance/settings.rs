//! The ranges of settings: a duration or number outside of its range is an error that names the
//! setting, before the store is asked anything.

use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use super::{Store, connect, free, nothing_left, process};
use crate::support::locks::is_busy;
use crate::support::wait::{HANG, within};

const TEN_YEARS: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const NANO: Duration = Duration::from_nanos(1);

#[track_caller]
fn names<T>(answer: Result<T, LockError>, expected: &str) {
    match answer.map(drop) {
        Err(LockError::Config { setting, .. }) => assert_eq!(setting, expected),
        other => panic!("{expected}: {other:?}"),
    }
}

pub(crate) async fn a_configuration_out_of_its_range_is_refused(store: &mut dyn Store) {
    let config = || super::config(store);
    let cases: Vec<(&str, Config)> = vec![
        ("request_timeout", config().request_timeout(Duration::MAX)),
        ("request_timeout", config().request_timeout(DAY + NANO)),
        ("request_timeout", config().request_timeout(NANO)),
        ("timeout", config().timeout(Duration::MAX)),
        ("timeout", config().timeout(TEN_YEARS + NANO)),
        ("handoff", config().handoff(64)),
        ("handoff", config().handoff(u32::MAX)),
        ("ttl", config().ttl(Duration::MAX)),
        ("ttl", config().ttl(TEN_YEARS + NANO)),
    ];
    for (setting, config) in cases {
        names(within(HANG, LockManager::connect(config)).await, setting);
    }
}

pub(crate) async fn a_request_out_of_its_range_is_refused(store: &mut dyn Store) {
    let manager = process(store).await;
    let longest = manager.capabilities().max_ttl.min(TEN_YEARS);
    let s = Duration::from_secs;
    let lock = || manager.lock("key");
    for (setting, request) in [
        ("ttl", lock().ttl(longest + NANO)),
        ("max_hold", lock().max_hold(Duration::MAX)),
        ("max_hold", lock().max_hold(Duration::ZERO)),
        ("min_hold", lock().min_hold(Duration::MAX)),
        ("min_hold", lock().min_hold(longest + NANO)),
        ("max_hold", lock().renew(false).max_hold(s(5))),
        ("min_hold", lock().max_hold(s(5)).min_hold(s(6))),
    ] {
        names(within(HANG, request.clone().acquire()).await, setting);
        names(within(HANG, request.run(async {})).await, setting);
    }
    for limit in [Duration::MAX, TEN_YEARS + NANO] {
        names(within(HANG, lock().acquire_within(limit)).await, "timeout");
    }
    nothing_left(&manager).await;
}

/// The longest values work without overflow: the call gets the lock, renews it if necessary, and
/// gives it back.
pub(crate) async fn the_ends_of_the_ranges_work(store: &mut dyn Store) {
    let longest = process(store).await.capabilities().max_ttl.min(TEN_YEARS);
    let config = super::config(store)
        .request_timeout(DAY)
        .timeout(TEN_YEARS)
        .ttl(longest)
        .handoff(63);
    let manager = connect(config).await;
    let lock = || manager.lock("key");
    for request in [
        lock(),
        lock().max_hold(TEN_YEARS),
        lock().min_hold(Duration::ZERO),
        lock().renew(false),
    ] {
        let value = within(HANG, request.run(async { 7 })).await;
        assert_eq!(value.expect("the lock"), 7);
        free(&manager, "key").await;
    }
    let guard = within(HANG, lock().acquire_within(TEN_YEARS)).await;
    let guard = guard.expect("the lock");
    is_busy(lock().try_acquire().await);
    guard.release().await.expect("the release");
    nothing_left(&manager).await;
}
