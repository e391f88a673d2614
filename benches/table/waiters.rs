//! What it costs the server that tasks of a process wait.

use std::time::{Duration, Instant};

use dlock_benches::{Dlock, Locker};
use tokio::task::JoinSet;

use crate::Bench;
use crate::counters::Counters;
use crate::report::Row;
use crate::support::wait::until;

pub(crate) fn idle(bench: &Bench) -> Vec<Row> {
    let waiters = bench.effort.waiters;
    [1, waiters]
        .into_iter()
        .map(|keys| {
            let rate = bench.block_on(cost(bench, keys));
            let work = match keys {
                1 => format!("{waiters} waiters on one key: commands a second"),
                _ => format!("{waiters} waiters on {keys} keys: commands a second"),
            };
            Row::new(work, format!("{rate:.1}")).bound("≤ 2", rate <= 2.0)
        })
        .collect()
}

async fn cost(bench: &Bench, keys: usize) -> f64 {
    let url = bench.url();
    let (holder, other) = (Dlock::connect(&url).await, Dlock::connect(&url).await);
    let key = move |number: usize| format!("waited:{keys}:{}", number % keys);
    let mut guards = Vec::new();
    for number in 0..keys {
        let request = holder.manager().lock(key(number));
        guards.push(request.acquire().await.expect("the lock"));
    }
    let waiting: JoinSet<_> = (0..bench.effort.waiters)
        .map(|number| {
            let other = other.clone();
            async move { other.section(&key(number), async {}).await }
        })
        .collect();
    let in_queues = async || -> usize {
        let prefix = format!("waited:{keys}:");
        let listed = holder.manager().list(&prefix).await.expect("the locks");
        listed
            .iter()
            .map(|lock| lock.waiters.unwrap_or_default())
            .sum()
    };
    until("all wait", in_queues, |&waiting| waiting == keys).await;

    let (start, before) = (Instant::now(), Counters::of(&bench.server).await);
    tokio::time::sleep(bench.effort.watch.max(Duration::from_secs(1))).await;
    let counters = Counters::of(&bench.server).await.since(&before);
    let rate = counters.all_calls() as f64 / start.elapsed().as_secs_f64();
    drop(guards);
    waiting.join_all().await;
    rate
}
