//! Load: many contenders, a plain counter, and an exact count at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::{LockError, LockManager};
use tokio::task::JoinSet;

use super::{Store, nothing_left, process};
use crate::support::critical::PlainCounter;
use crate::support::locks::all_served;
use crate::support::wait::HANG;

/// This many managers, each of which stands for a process. Among the tasks of one manager, its
/// gate does most of the work; among several managers, the store does.
async fn managers(store: &dyn Store, count: usize) -> Vec<LockManager> {
    let mut managers = Vec::new();
    for _ in 0..count {
        managers.push(process(store).await);
    }
    managers
}

async fn contenders_add_up(store: &dyn Store, contenders: usize, processes: usize) {
    let managers = managers(store, processes).await;
    let counter = Arc::new(PlainCounter::default());
    let mut adding = JoinSet::new();
    for number in 0..contenders {
        let (manager, counter) = (managers[number % processes].clone(), Arc::clone(&counter));
        adding.spawn(async move { manager.lock("counter").run(counter.add_one()).await });
    }
    all_served(adding).await;
    assert_eq!(counter.value(), contenders as u64);
    nothing_left(&managers[0]).await;
}

pub(crate) async fn ten_contenders_add_up(store: &mut dyn Store) {
    for processes in [1, 10] {
        contenders_add_up(store, 10, processes).await;
    }
}

pub(crate) async fn two_hundred_contenders_add_up(store: &mut dyn Store) {
    for processes in [1, 5] {
        contenders_add_up(store, 200, processes).await;
    }
}

pub(crate) async fn tasks_over_keys_drawn_at_random_add_up(store: &mut dyn Store) {
    const TASKS: usize = 50;
    const ROUNDS: usize = 10;
    let managers = managers(store, 5).await;
    let counters: Arc<[PlainCounter; 5]> = Arc::default();
    let mut adding = JoinSet::new();
    for number in 0..TASKS {
        let manager = managers[number % managers.len()].clone();
        let counters = Arc::clone(&counters);
        adding.spawn(async move {
            let mut random = fastrand::Rng::with_seed(number as u64);
            for _ in 0..ROUNDS {
                let drawn = random.usize(..counters.len());
                let pause = Duration::from_micros(random.u64(..4_000));
                let body = counters[drawn].add_one_slowly(pause);
                manager.lock(format!("counter:{drawn}")).run(body).await?;
            }
            Ok::<_, LockError>(())
        });
    }
    all_served(adding).await;
    let total: u64 = counters.iter().map(PlainCounter::value).sum();
    assert_eq!(total, (TASKS * ROUNDS) as u64);
    nothing_left(&managers[0]).await;
}

/// A hundred contenders, with fifty leases at a time, each renewed several times. If the machine
/// stands still for a whole ttl, leases are lost or get no answer in time, and the call fails;
/// such a contender tries again: on a machine with forty things to do, many times.
pub(crate) async fn contenders_that_renew_add_up(store: &mut dyn Store) {
    const CONTENDERS: usize = 100;
    const KEYS: usize = 50;
    let managers = managers(store, 2).await;
    let ttl = store.short_ttl();
    let counters: Arc<Vec<PlainCounter>> =
        Arc::new((0..KEYS).map(|_| PlainCounter::default()).collect());
    let mut adding = JoinSet::new();
    for number in 0..CONTENDERS {
        let key = number % KEYS;
        // The two that want the same key are in different processes.
        let manager = managers[usize::from(number >= KEYS)].clone();
        let counters = Arc::clone(&counters);
        adding.spawn(async move {
            let begun = Instant::now();
            loop {
                let mut added = false;
                let body = async {
                    // Between the read and the write, the lease would expire twice without
                    // renewals.
                    counters[key].add_one_slowly(2 * ttl).await;
                    added = true;
                };
                let lock = manager.lock(format!("counter:{key}")).ttl(ttl);
                let ran = lock.run(body).await;
                match ran {
                    Err(LockError::Lost { .. }) if added => return Ok(()),
                    Err(LockError::Lost { .. } | LockError::Unavailable { .. })
                        if begun.elapsed() < HANG / 2 => {}
                    ran => return ran,
                }
            }
        });
    }
    all_served(adding).await;
    let counts: Vec<_> = counters.iter().map(PlainCounter::value).collect();
    assert_eq!(counts, [(CONTENDERS / KEYS) as u64; KEYS]);
    nothing_left(&managers[0]).await;
}
