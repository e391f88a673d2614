//! What needs no server: re-entry, and the `memory:` store.

use std::time::Instant;

use dlock_benches::{Dlock, Locker};

use crate::Bench;
use crate::contest::{take_turns, turn};
use crate::report::Row;
use crate::spread::Spread;
use crate::units::{per_second, time};

const CALLS: u32 = 1000;

pub(crate) fn inside(bench: &Bench) -> Vec<Row> {
    bench.block_on(async {
        let redis = Dlock::connect(&bench.url()).await;
        let memory = Dlock::in_memory().await;
        let reentry = redis.section("outer", reentries(bench, &redis)).await;
        let effort = &bench.effort;
        let hot = ["hot"; 64];
        let turns = [
            turn(&memory, effort, &["lone"]),
            turn(&memory, effort, &hot),
        ];
        let rates = take_turns(effort, &turns).await;
        vec![
            Row::new("re-entry, lock in Redis", time(reentry)).bound("< 1 µs", reentry < 1000.0),
            Row::new("`memory:`, 1 task", per_second(rates.of(0).median())),
            Row::new(
                "`memory:`, 64 tasks, one key",
                per_second(rates.of(1).median()),
            ),
        ]
    })
}

/// The median over the rounds of what one re-entry takes.
async fn reentries(bench: &Bench, dlock: &Dlock) -> f64 {
    let mut times = Vec::new();
    for _ in 0..bench.effort.rounds {
        let start = Instant::now();
        for _ in 0..CALLS {
            dlock.section("outer", async {}).await;
        }
        times.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    Spread::new(times).median()
}
