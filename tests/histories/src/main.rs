//! What dlock does on real servers while processes, networks and servers fail.
//!
//! ```text
//! cargo run --release -p dlock-histories -- --store etcd --histories 10
//! ```
//!
//! A history is at least 20 seconds and ten faults. Four processes take two locks again
//! and again, as users do, and what the locks protect trusts nobody: a counter that
//! refuses older tokens and writes down all that happens. A history fails when two
//! bodies overlap, a token does not rise or an update is lost where the store's page does
//! not allow it; when a call takes too long or is told something that was not so; or when
//! after the last fault a lock cannot be had or something is left.

mod call;
mod databases;
mod fault;
mod history;
mod moment;
mod order;
mod plan;
mod summary;
#[path = "../../support/mod.rs"]
mod support;
mod topology;
mod worker;

use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::thread;

use lexopt::prelude::*;

use summary::Summary;
use topology::STORES;

const USAGE: &str = "\
Usage: dlock-histories --store STORE|all [--histories N] [--seed S] [--at-once N]

  --store      redis, sentinel, cluster, cluster-quorum, redlock, etcd, zookeeper,
               postgres, mysql, sqlite, memcached, or all of them
  --histories  how many of each [1]
  --seed       that of the first; those after it follow [drawn]
  --at-once    so many at the same time [1]";

struct Options {
    stores: Vec<&'static str>,
    histories: u64,
    seed: u64,
    at_once: usize,
}

fn options() -> Result<Options, lexopt::Error> {
    let mut stores = Vec::new();
    let (mut histories, mut seed, mut at_once) = (1, fastrand::u64(..1 << 32), 1);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("store") => {
                let name = arguments.value()?.string()?;
                let wanted = |store: &&&str| name == "all" || **store == name;
                stores.extend(STORES.iter().filter(wanted));
                if stores.is_empty() {
                    return Err(format!("no store is called {name:?}").into());
                }
            }
            Long("histories") => histories = arguments.value()?.parse()?,
            Long("seed") => seed = arguments.value()?.parse()?,
            Long("at-once") => at_once = arguments.value()?.parse()?,
            _ => return Err(argument.unexpected()),
        }
    }
    if stores.is_empty() {
        return Err("--store is missing".into());
    }
    Ok(Options {
        stores,
        histories,
        seed,
        at_once: at_once.max(1),
    })
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(worker::ROLE) {
        worker::play(arguments);
        return ExitCode::SUCCESS;
    }
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    println!("the first seed is {}", options.seed);
    ExitCode::from(u8::from(run_all(&options)))
}

/// Whether any of them failed. The next one begins when one is over, of the next store
/// too, as most wait for their longest fault.
fn run_all(options: &Options) -> bool {
    let seeds = options.seed..options.seed + options.histories;
    let stores = options.stores.iter();
    let all = stores.flat_map(|store| seeds.clone().map(move |seed| (*store, seed)));
    let all = Mutex::new(all);
    let (tells, told) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..options.at_once {
            let (all, tells) = (&all, tells.clone());
            scope.spawn(move || {
                loop {
                    let next = all.lock().expect("no panic while it is drawn").next();
                    let Some((store, seed)) = next else { return };
                    // What a panic says was printed as it happened.
                    let outcomes = thread::spawn(move || run_one(store, seed)).join().ok();
                    if outcomes.is_none() {
                        eprintln!("FAILED: --store {store} --histories 1 --seed {seed}");
                    }
                    let _ = tells.send((store, outcomes));
                }
            });
        }
        drop(tells);
        let mut failed = false;
        let mut summaries: Vec<_> = options.stores.iter().map(|s| Summary::of(s)).collect();
        for (store, outcomes) in told {
            let summary = summaries.iter_mut().find(|summary| summary.store == store);
            let summary = summary.expect("one for each store");
            summary.add(outcomes);
            if summary.histories == options.histories {
                println!("{summary}");
                failed |= summary.has_failed();
            }
        }
        failed
    })
}

fn run_one(store: &str, seed: u64) -> history::Outcomes {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    runtime.block_on(history::run(store, seed))
}
