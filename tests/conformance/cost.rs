//! The cost of locks, in the unit that the store counts: a section costs no more than necessary,
//! and waiting costs by process, not by waiter. (Section 8 of the design.)

use std::time::{Duration, Instant};

use dlock::{LockManager, LockRequest};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Costs, Store, connect, held, queued};
use crate::support::locks::all_served;
use crate::support::wait::{HANG, until, within};

const WAITERS: usize = 1_000;

const SECTIONS: u64 = 100;

/// The time over which the rate is measured, since heartbeats are seconds apart.
const IDLE: Duration = Duration::from_secs(6);

/// What the test's own questions and heartbeats may cost in addition.
const BESIDES: u64 = 20;

/// How often a cost is counted that a busy machine may add to.
const TRIES: usize = 5;

/// A manager with a long request timeout: a thousand requests keep a store busy for a while.
async fn patient(store: &dyn Store) -> LockManager {
    connect(super::config(store).request_timeout(HANG)).await
}

/// How much the store is asked in one second.
async fn in_a_second(store: &dyn Store) -> u64 {
    let before = store.asked().await;
    sleep(Duration::from_secs(1)).await;
    store.asked().await - before
}

/// The cost of this many sections, one after the other.
async fn sections_cost(store: &dyn Store, sections: u64, lock: impl Fn() -> LockRequest) -> u64 {
    let section = async || {
        let ran = within(HANG, lock().run(async {})).await;
        ran.expect("the lock");
    };
    section().await;
    let before = store.asked().await;
    for _ in 0..sections {
        section().await;
    }
    store.asked().await - before
}

/// A permit is stored like a reader whose number is also checked, which costs no extra question.
pub(crate) async fn a_permit_costs_what_a_read_lock_costs(store: &mut dyn Store) {
    let manager = patient(store).await;
    if store.costs().is_none() || !manager.capabilities().permits {
        return;
    }
    // On a busy machine a server may be late, and then a command is sent again.
    let mut costs = Vec::new();
    for _ in 0..TRIES {
        let read = sections_cost(store, SECTIONS, || manager.lock("key").read()).await;
        let mut permits = Vec::new();
        // With room for others, and without.
        for most in [8, 1] {
            let lock = || manager.lock("key").permits(most);
            permits.push(sections_cost(store, SECTIONS, lock).await);
        }
        let expected = SECTIONS..=read + BESIDES;
        if permits.iter().all(|permit| expected.contains(permit)) {
            return;
        }
        costs.push((read, permits));
    }
    panic!("{costs:?} for {SECTIONS} readers, and for as many permits of eight and of one");
}

pub(crate) async fn a_section_costs_no_more_than_it_has_to(store: &mut dyn Store) {
    let Some(Costs { section, .. }) = store.costs() else {
        return;
    };
    let manager = patient(store).await;
    // On a busy machine a server may be late, and then a command is sent again.
    let mut costs = Vec::new();
    for _ in 0..TRIES {
        let cost = sections_cost(store, SECTIONS, || manager.lock("key")).await;
        if (SECTIONS..=section * SECTIONS + BESIDES).contains(&cost) {
            return;
        }
        costs.push(cost);
    }
    panic!("{costs:?} for {SECTIONS} sections");
}

async fn waiting_costs_little(store: &dyn Store, costs: Costs, keys: usize) {
    let (holder, other) = (patient(store).await, patient(store).await);
    let key = |number: usize| format!("key:{}", number % keys);
    let mut guards = Vec::new();
    for number in 0..keys {
        guards.push(held(holder.lock(key(number))).await);
    }
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        waiting.spawn(other.lock(key(number)).run(async {}));
    }
    if keys == 1 {
        queued(store, &holder, &key(0), 1).await;
    } else {
        let places = async || -> usize {
            let listed = holder.list("key:").await.expect("list");
            listed.iter().filter_map(|lock| lock.waiters).sum()
        };
        // The waiters of one key in one process have one place in the queue.
        until("all wait", places, |&places| places == keys).await;
    }
    // A new waiter asks once more.
    let calm = async || in_a_second(store).await;
    until("all have asked", calm, |&cost| cost < 10).await;

    // On a busy machine some waiters are still late.
    let rate = async || {
        let (start, before) = (Instant::now(), store.asked().await);
        sleep(IDLE).await;
        let cost = store.asked().await - before;
        cost as f64 / start.elapsed().as_secs_f64()
    };
    let what = format!("what is asked in a second for {WAITERS} waiters");
    until(&what, rate, |&rate| rate <= costs.waiting).await;
    assert!(waiting.try_join_next().is_none(), "somebody did not wait");

    drop(guards);
    all_served(waiting).await;
    // A process that waits for nothing asks nothing.
    let calm = async || in_a_second(store).await;
    until("it ends", calm, |&cost| cost <= costs.idle).await;
}

pub(crate) async fn a_thousand_waiters_on_one_key_cost_as_much_as_one(store: &mut dyn Store) {
    if let Some(costs) = store.costs() {
        waiting_costs_little(store, costs, 1).await;
    }
}

pub(crate) async fn a_thousand_waiters_on_a_thousand_keys_cost_as_much_as_one(
    store: &mut dyn Store,
) {
    if let Some(costs) = store.costs()
        && costs.keys >= WAITERS
    {
        waiting_costs_little(store, costs, WAITERS).await;
    }
}

/// Each waiter is a process of its own, which asks the store itself. If all of them were woken,
/// the cost of a hand-over would grow with the number of waiters.
pub(crate) async fn a_release_wakes_one_of_many(store: &mut dyn Store) {
    let holder = patient(store).await;
    if store.costs().is_none() || !holder.capabilities().fair {
        return;
    }
    // On a busy machine, who waits may ask more often meanwhile than it did before.
    let mut costs = Vec::new();
    for _ in 0..TRIES {
        let [few, _] = a_release_costs(store, &holder, 10).await;
        let [many, anyway] = a_release_costs(store, &holder, 60).await;
        if many - anyway <= 2.0 * few {
            return;
        }
        costs.push([few, many, anyway]);
    }
    panic!(
        "for a release before ten who wait, for one before sixty, and how much of this anyway: {costs:?}"
    );
}

/// The cost of a release before so many who wait, and how much of it waiting would have cost
/// anyway.
async fn a_release_costs(store: &dyn Store, holder: &LockManager, waiters: usize) -> [f64; 2] {
    let guard = held(holder.lock("key")).await;
    let mut waiting = JoinSet::new();
    for number in 0..waiters {
        let manager = patient(store).await;
        waiting.spawn(async move { manager.lock("key").run(async {}).await });
        queued(store, holder, "key", number + 1).await;
    }
    let calm = async || in_a_second(store).await;
    let each = 2 * waiters as u64;
    let calm = until("all wait", calm, |&cost| cost <= each).await;
    let (before, begun) = (store.asked().await, Instant::now());
    guard.release().await.expect("the release");
    all_served(waiting).await;
    let cost = (store.asked().await - before) as f64;
    // On a busy machine this takes a while, and the cost of waiting is added.
    let anyway = calm as f64 * begun.elapsed().as_secs_f64();
    [cost, anyway].map(|cost| cost / (waiters + 1) as f64)
}
