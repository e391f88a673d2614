//! What dlock costs on PostgreSQL, beside the advisory locks of its sessions, in
//! one run.
//!
//!     cargo bench -p dlock-benches --features postgres --bench postgres
//!
//! It starts a server of its own, which does not wait for the disk: what is
//! measured is the protocol. Contestants take turns in short slices; shown is
//! the median of their ratios with the quartiles. Without `--bench`, which
//! `cargo bench` adds, each row is run for a moment.

#[path = "../table/contest.rs"]
mod contest;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/postgres/server.rs"]
mod server;
#[allow(dead_code, reason = "the other table uses more of it")]
#[path = "../table/spread.rs"]
mod spread;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::sync::LazyLock;
use std::time::Duration;

use dlock_benches::{Advisory, Dlock, Locker};
use tokio::runtime::Runtime;

use contest::{take_turns, turn};
use server::Server;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
}

const FULL: Effort = Effort {
    rounds: 48,
    slice: Duration::from_millis(100),
};

/// Enough to see that everything works.
const SMOKE: Effort = Effort {
    rounds: 1,
    slice: Duration::from_millis(5),
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
        let server = Server::start().await;
        let url = server.url("postgres", server.port()) + "?create_tables=true";
        let (dlock, bare) = (Dlock::connect(&url).await, Advisory::connect(&url).await);
        println!("| work | dlock | pg_advisory_lock | dlock ÷ pg_advisory_lock (quartiles) |");
        println!("| --- | --- | --- | --- |");
        for (work, keys) in [
            ("1 task", &KEYS[..1]),
            ("16 tasks, 16 keys", &KEYS[..]),
            ("16 tasks, one key", &[KEYS[0]; TASKS][..]),
        ] {
            let turns = [turn(&dlock, &effort, keys), turn(&bare, &effort, keys)];
            let rates = take_turns(&effort, &turns).await;
            let [ours, theirs] = [0, 1].map(|who| rates.of(who).median());
            let ratio = rates.first_beside(1);
            println!("| {work} | {ours:.0}/s | {theirs:.0}/s | {ratio} |");
        }
    });
}
