//! What dlock costs on memcached, beside a bare `add` and `delete`, in one run.
//!
//!     cargo bench -p dlock-benches --features memcached --bench memcached
//!
//! It starts a `memcached` of its own. Contestants take turns in short slices;
//! shown is the median of their ratios with the quartiles. Without `--bench`,
//! which `cargo bench` adds, each row is run for a moment.

#[path = "../table/contest.rs"]
mod contest;
#[allow(dead_code, reason = "the other table uses the rest")]
#[path = "../table/spread.rs"]
mod spread;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::sync::LazyLock;
use std::time::Duration;

use dlock_benches::{BareMemcached, Dlock, Locker};
use tokio::runtime::Runtime;

use contest::{take_turns, turn};
use support::memcached::MemcachedServer;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
}

const FULL: Effort = Effort {
    rounds: 48,
    slice: Duration::from_millis(60),
};

/// Enough to see that everything works.
const SMOKE: Effort = Effort {
    rounds: 1,
    slice: Duration::from_millis(5),
};

const TASKS: usize = 64;

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
        let server = MemcachedServer::start().await;
        let url = server.url();
        let (dlock, bare) = (
            Dlock::connect(&url).await,
            BareMemcached::connect(&url).await,
        );
        println!("| work | dlock | bare pair | dlock ÷ bare (quartiles) |");
        println!("| --- | --- | --- | --- |");
        for (work, keys, beside) in [
            ("1 task", &KEYS[..1], &KEYS[..1]),
            ("64 tasks, 64 keys", &KEYS[..], &KEYS[..]),
            // A bare pair does not wait: beside is one that nobody contends for.
            (
                "64 tasks, one key (bare: 1 task)",
                &[KEYS[0]; TASKS][..],
                &KEYS[..1],
            ),
        ] {
            let turns = [turn(&dlock, &effort, keys), turn(&bare, &effort, beside)];
            let rates = take_turns(&effort, &turns).await;
            let [ours, theirs] = [0, 1].map(|who| rates.of(who).median());
            let ratio = rates.first_beside(1);
            println!("| {work} | {ours:.0}/s | {theirs:.0}/s | {ratio} |");
        }
    });
}
