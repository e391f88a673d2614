//! Empty sections by permits, beside the same by locks: one task, and 64 tasks on one key
//! with eight permits.

use dlock_benches::{Dlock, Locker, Permits};

use crate::Bench;
use crate::contest::{take_turns, turn};
use crate::report::Row;
use crate::units::per_second;

const TASKS: usize = 64;

pub(crate) fn beside_locks(bench: &Bench) -> Vec<Row> {
    let row = |work: &str, permits: &[&'static str], locks: &[&'static str]| {
        let rates = bench.block_on(async {
            let (effort, url) = (&bench.effort, bench.url());
            let (permit, lock) = (Permits::connect(&url).await, Dlock::connect(&url).await);
            let turns = [turn(&permit, effort, permits), turn(&lock, effort, locks)];
            take_turns(effort, &turns).await
        });
        Row::new(work, per_second(rates.of(0).median()))
            .bare(per_second(rates.of(1).median()))
            .beside(&rates.first_beside(1))
    };
    vec![
        row("1 task, a permit (bare: a lock)", &["permit"], &["lone"]),
        row(
            "64 tasks, one key, 8 permits (bare: a lock)",
            &["permits"; TASKS],
            &["hot"; TASKS],
        ),
    ]
}
