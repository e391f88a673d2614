//! What dlock costs on ZooKeeper, beside the lock of the same client crate, in
//! one run.
//!
//!     cargo bench -p dlock-benches --features zookeeper --bench zookeeper
//!
//! It starts a server of its own, which keeps nothing on disk safely: what is
//! measured is the protocol, not the disk. Contestants take turns in short
//! slices; shown is the median of their ratios with the quartiles. Without
//! `--bench`, which `cargo bench` adds, each row is run for a moment.

#[path = "../table/contest.rs"]
mod contest;
#[allow(dead_code, reason = "the other table uses more of it")]
#[path = "../table/spread.rs"]
mod spread;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::sync::LazyLock;
use std::time::Duration;

use dlock_benches::{Dlock, Locker, ZooKeeperLock};
use tokio::runtime::Runtime;

use contest::{take_turns, turn};
use support::zookeeper::{Setup, ZooKeeperServer};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    /// Sections whose requests are counted.
    sections: u32,
}

const FULL: Effort = Effort {
    rounds: 48,
    slice: Duration::from_millis(100),
    sections: 500,
};

/// Enough to see that everything works.
const SMOKE: Effort = Effort {
    rounds: 1,
    slice: Duration::from_millis(5),
    sections: 20,
};

const TASKS: usize = 16;

static KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    (0..TASKS)
        .map(|key| &*format!("key:{key}").leak())
        .collect()
});

fn main() {
    let measured = std::env::args().any(|argument| argument == "--bench");
    let effort = if measured { FULL } else { SMOKE };
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let server = Setup::default().start().await;
        let url = format!("zookeeper://127.0.0.1:{}", server.port());
        let dlock = Dlock::connect(&url).await;
        let lock = ZooKeeperLock::connect(&url).await;
        println!("| work | dlock | client's lock | dlock ÷ client's lock (quartiles) |");
        println!("| --- | --- | --- | --- |");
        for (work, keys) in [
            ("1 task", &KEYS[..1]),
            ("16 tasks, 16 keys", &KEYS[..]),
            ("16 tasks, one key", &[KEYS[0]; TASKS][..]),
        ] {
            let turns = [turn(&dlock, &effort, keys), turn(&lock, &effort, keys)];
            let rates = take_turns(&effort, &turns).await;
            let [ours, theirs] = [0, 1].map(|who| rates.of(who).median());
            let ratio = rates.first_beside(1);
            println!("| {work} | {ours:.0}/s | {theirs:.0}/s | {ratio} |");
        }
        let [ours, theirs] = [
            writes(&server, &dlock, effort.sections).await,
            writes(&server, &lock, effort.sections).await,
        ];
        println!("| writes that the servers agree on, for a section | {ours:.2} | {theirs:.2} | |");
    });
}

/// Transactions for each section of a lone task.
async fn writes<L: Locker>(server: &ZooKeeperServer, locker: &L, sections: u32) -> f64 {
    // What is made once.
    locker.section("counted", async {}).await;
    let before = server.transactions();
    for _ in 0..sections {
        locker.section("counted", async {}).await;
    }
    (server.transactions() - before) as f64 / f64::from(sections)
}
