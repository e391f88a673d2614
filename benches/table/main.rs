//! The table of `docs/benchmarks.md`: what dlock costs on Redis, beside the
//! bare two round trips and the `rslock` crate, in one run.
//!
//!     cargo bench -p dlock-benches --bench table [-- <part of a row's name>…]
//!
//! It starts a `redis-server` of its own. Machines are shared and noisy, so
//! contestants take turns in short slices, and what is shown is the median of
//! their ratios with the quartiles. Without `--bench`, which `cargo bench`
//! adds, each row is run for a moment and nothing is shown.

#[path = "../../tests/support/mod.rs"]
mod support;

mod children;
mod commands;
mod contest;
mod counters;
#[path = "../crowd.rs"]
mod crowd;
mod footprint;
mod hand_over;
#[path = "../heat.rs"]
mod heat;
mod pairs;
mod permits;
mod processes;
#[path = "../program.rs"]
mod program;
mod reentry;
mod renewals;
mod report;
mod spread;
mod units;
mod waiters;

use std::future::Future;
use std::time::Duration;

use report::Row;
use support::redis::RedisServer;
use tokio::runtime::Runtime;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Rounds of a contest in short slices, and the length of a slice.
    pub(crate) rounds: usize,
    pub(crate) slice: Duration,
    /// Rounds of a contest of processes, how long they contend in each before it
    /// counts, and how long it does.
    pub(crate) heats: usize,
    pub(crate) warm_up: Duration,
    pub(crate) heat: Duration,
    /// For how long the server's counters are watched.
    pub(crate) watch: Duration,
    pub(crate) held: usize,
    pub(crate) waiters: usize,
}

impl Effort {
    const FULL: Self = Self {
        rounds: 48,
        slice: Duration::from_millis(60),
        heats: 5,
        warm_up: Duration::from_millis(400),
        heat: Duration::from_secs(2),
        watch: Duration::from_secs(10),
        held: 10_000,
        waiters: 1_000,
    };

    /// Enough to see that everything works.
    const SMOKE: Self = Self {
        rounds: 1,
        slice: Duration::from_millis(5),
        heats: 1,
        warm_up: Duration::ZERO,
        heat: Duration::from_millis(200),
        watch: Duration::from_millis(500),
        held: 100,
        waiters: 20,
    };
}

/// What every row needs.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) effort: Effort,
    pub(crate) server: RedisServer,
    runtime: Runtime,
}

impl Bench {
    fn new(effort: Effort) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let server = runtime.block_on(RedisServer::start());
        Self {
            effort,
            server,
            runtime,
        }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Runs on the threads of a service's runtime.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

type Measure = fn(&Bench) -> Vec<Row>;

const ROWS: [(&str, Measure); 12] = [
    ("lone", pairs::lone),
    ("64 keys", pairs::many_keys),
    ("one key", pairs::one_key),
    ("permits", permits::beside_locks),
    ("one thread", pairs::on_one_thread),
    ("processes", processes::contended),
    ("hand-over", hand_over::between_two),
    ("waiters", waiters::idle),
    ("renewals", renewals::held),
    ("re-entry", reentry::inside),
    ("commands", commands::per_section),
    ("footprint", footprint::of_a_call),
];

fn main() {
    let mut measured = false;
    let mut wanted = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--bench" => measured = true,
            // What `cargo test` passes on is for tests.
            option if option.starts_with('-') => {}
            _ => wanted.push(argument),
        }
    }
    let effort = if measured {
        Effort::FULL
    } else {
        Effort::SMOKE
    };
    let bench = Bench::new(effort);
    let mut rows = Vec::new();
    for (name, measure) in ROWS {
        if wanted.is_empty() || wanted.iter().any(|wanted| name.contains(wanted)) {
            eprintln!("{name} …");
            rows.extend(measure(&bench));
        }
    }
    if measured {
        report::print(&rows);
    } else {
        println!(
            "{} rows ran; `cargo bench -p dlock-benches` measures",
            rows.len()
        );
    }
}
