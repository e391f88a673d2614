//! Load: many contenders, a plain counter, and an exact count at the end.

use std::sync::Arc;
use std::time::Duration;

use dlock::LockError;
use tokio::task::JoinSet;

use super::critical::PlainCounter;
use super::{Store, nothing_left, process};
use crate::support::wait::{HANG, within};

async fn all_done(contenders: JoinSet<Result<(), LockError>>) {
    let all = within(HANG, contenders.join_all()).await;
    all.into_iter()
        .collect::<Result<(), _>>()
        .expect("the lock");
}

async fn contenders_add_up<S: Store>(store: &S, contenders: u64) {
    let manager = process(store).await;
    let counter = Arc::new(PlainCounter::default());
    let mut adding = JoinSet::new();
    for _ in 0..contenders {
        let (manager, counter) = (manager.clone(), Arc::clone(&counter));
        adding.spawn(async move { manager.lock("counter").run(counter.add_one()).await });
    }
    all_done(adding).await;
    assert_eq!(counter.value(), contenders);
    nothing_left(&manager).await;
}

pub(crate) async fn ten_contenders_add_up<S: Store>(store: &mut S) {
    contenders_add_up(store, 10).await;
}

pub(crate) async fn two_hundred_contenders_add_up<S: Store>(store: &mut S) {
    contenders_add_up(store, 200).await;
}

pub(crate) async fn tasks_over_keys_drawn_at_random_add_up<S: Store>(store: &mut S) {
    const TASKS: u64 = 50;
    const ROUNDS: u64 = 10;
    let manager = process(store).await;
    let counters: Arc<[PlainCounter; 5]> = Arc::default();
    let mut adding = JoinSet::new();
    for seed in 0..TASKS {
        let (manager, counters) = (manager.clone(), Arc::clone(&counters));
        adding.spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..ROUNDS {
                let drawn = random.usize(..counters.len());
                let pause = Duration::from_micros(random.u64(..4_000));
                let body = counters[drawn].add_one_slowly(pause);
                manager.lock(format!("counter:{drawn}")).run(body).await?;
            }
            Ok(())
        });
    }
    all_done(adding).await;
    let total: u64 = counters.iter().map(PlainCounter::value).sum();
    assert_eq!(total, TASKS * ROUNDS);
    nothing_left(&manager).await;
}

/// A hundred contenders, fifty leases at a time, each renewed several times.
pub(crate) async fn contenders_that_renew_add_up<S: Store>(store: &mut S) {
    const CONTENDERS: u64 = 100;
    const KEYS: u64 = 50;
    let managers = [process(store).await, process(store).await];
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
            // Between the read and the write, the lease would run out twice.
            let counter = &counters[usize::try_from(key).expect("a small number")];
            let body = counter.add_one_slowly(2 * ttl);
            manager
                .lock(format!("counter:{key}"))
                .ttl(ttl)
                .run(body)
                .await
        });
    }
    all_done(adding).await;
    let counts: Vec<_> = counters.iter().map(PlainCounter::value).collect();
    assert_eq!(counts, [CONTENDERS / KEYS; KEYS as usize]);
    nothing_left(&managers[0]).await;
}

pub(crate) async fn several_processes_add_up<S: Store>(store: &mut S) {
    const PROCESSES: u64 = 4;
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 10;
    let counter = Arc::new(PlainCounter::default());
    let mut adding = JoinSet::new();
    for _ in 0..PROCESSES {
        let manager = process(store).await;
        for _ in 0..TASKS {
            let (manager, counter) = (manager.clone(), Arc::clone(&counter));
            adding.spawn(async move {
                for _ in 0..ROUNDS {
                    manager.lock("counter").run(counter.add_one()).await?;
                }
                Ok(())
            });
        }
    }
    all_done(adding).await;
    assert_eq!(counter.value(), PROCESSES * TASKS * ROUNDS);
    nothing_left(&process(store).await).await;
}
