//! Empty sections within one process: one task, 64 tasks on as many keys, and
//! 64 tasks on one.

use std::sync::LazyLock;

use dlock_benches::{Bare, Dlock, LocalMutex, Locker, Rslock};
use tokio::runtime::Builder;

use crate::Bench;
use crate::contest::{Rates, take_turns, turn};
use crate::report::Row;
use crate::units::per_second;

const TASKS: usize = 64;

static KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    (0..TASKS)
        .map(|key| &*format!("key:{key}").leak())
        .collect()
});

struct Contestants {
    dlock: Dlock,
    bare: Bare,
    rslock: Rslock,
}

impl Contestants {
    async fn connect(bench: &Bench) -> Self {
        let url = bench.url();
        Self {
            dlock: Dlock::connect(&url).await,
            bare: Bare::connect(&url).await,
            rslock: Rslock::connect(&url).await,
        }
    }

    /// The bare pair has keys of its own to be set beside.
    async fn contend(&self, bench: &Bench, keys: &[&'static str], bare: &[&'static str]) -> Rates {
        let effort = &bench.effort;
        let turns = [
            turn(&self.dlock, effort, keys),
            turn(&self.bare, effort, bare),
            turn(&self.rslock, effort, keys),
        ];
        take_turns(effort, &turns).await
    }
}

fn row(work: &str, rates: &Rates) -> Row {
    Row::new(work, per_second(rates.of(0).median()))
        .bare(per_second(rates.of(1).median()))
        .rslock(per_second(rates.of(2).median()))
        .beside(&rates.first_beside(1))
}

fn bounded(row: Row, rates: &Rates, least: f64) -> Row {
    let met = rates.first_beside(1).median() >= least;
    row.bound(format!("≥ {least} ×"), met)
}

/// One task on a runtime of several threads.
pub(crate) fn lone(bench: &Bench) -> Vec<Row> {
    let rates = bench.block_on(async {
        let contestants = Contestants::connect(bench).await;
        contestants.contend(bench, &["lone"], &["lone"]).await
    });
    let row = row("1 task, runtime of many threads", &rates);
    vec![bounded(row, &rates, 0.95)]
}

/// The same works on a runtime of one thread.
pub(crate) fn on_one_thread(bench: &Bench) -> Vec<Row> {
    let contend = |keys: &[&'static str], bare: &[&'static str]| {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let contestants = Contestants::connect(bench).await;
            contestants.contend(bench, keys, bare).await
        })
    };
    let lone = contend(&["lone"], &["lone"]);
    let many = contend(&KEYS, &KEYS);
    let hot = contend(&["hot"; TASKS], &["lone"]);
    let runtime = Builder::new_current_thread().enable_all().build();
    let local = runtime.expect("a runtime").block_on(beside_mutex(bench));
    vec![
        bounded(row("1 task, runtime of one thread", &lone), &lone, 0.95),
        bounded(row("… 64 tasks, 64 keys", &many), &many, 0.8),
        bounded(row("… 64 tasks, one key (bare: 1 task)", &hot), &hot, 20.0),
        local_row("… 64 tasks, one key (bare: tokio's `Mutex`)", &local),
    ]
}

/// All tasks want one key, beside what a process has without any store.
async fn beside_mutex(bench: &Bench) -> Rates {
    let (effort, keys) = (&bench.effort, &["hot"; TASKS]);
    let (dlock, local) = (
        Dlock::connect(&bench.url()).await,
        LocalMutex::connect("").await,
    );
    take_turns(
        effort,
        &[turn(&dlock, effort, keys), turn(&local, effort, keys)],
    )
    .await
}

fn local_row(work: &str, rates: &Rates) -> Row {
    Row::new(work, per_second(rates.of(0).median()))
        .bare(per_second(rates.of(1).median()))
        .beside(&rates.first_beside(1))
}

/// As many tasks as keys.
pub(crate) fn many_keys(bench: &Bench) -> Vec<Row> {
    let rates = bench.block_on(async {
        let contestants = Contestants::connect(bench).await;
        contestants.contend(bench, &KEYS, &KEYS).await
    });
    vec![bounded(row("64 tasks, 64 keys", &rates), &rates, 0.8)]
}

/// All tasks want one key. A bare pair does not wait, so that what is beside is
/// one that nobody contends for.
pub(crate) fn one_key(bench: &Bench) -> Vec<Row> {
    let rates = bench.block_on(async {
        let contestants = Contestants::connect(bench).await;
        contestants.contend(bench, &["hot"; TASKS], &["lone"]).await
    });
    let work = "64 tasks, one key (bare: 1 task)";
    let local = bench.block_on(beside_mutex(bench));
    vec![
        bounded(row(work, &rates), &rates, 20.0),
        local_row("64 tasks, one key (bare: tokio's `Mutex`)", &local),
    ]
}
