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
//! after the last fault a lock cannot be had or something is left. Servers that do not start
//! are told apart from that: such a history judges nothing.

mod call;
mod databases;
mod ended;
mod fault;
mod history;
mod judge;
mod moment;
#[cfg(test)]
mod network;
mod order;
mod plan;
#[cfg(test)]
mod starts;
mod still;
mod suffers;
mod summary;
#[path = "../../support/mod.rs"]
mod support;
mod topology;
mod worker;

use std::process::ExitCode;
use std::sync::{Mutex, mpsc};
use std::thread;

use fastrand::Rng;
use lexopt::prelude::*;

use ended::{Ended, attempted};
use summary::Summary;
use topology::STORES;

const USAGE: &str = "\
Usage: dlock-histories --store STORE|all [--histories N] [--seed S] [--at-once N]

  --store      redis, sentinel, cluster, cluster-quorum, redlock, etcd, zookeeper,
               postgres, mysql, sqlite, memcached, or all of them
  --histories  how many of each [1]
  --seed       that of the first; those after it follow, of all stores [drawn]
  --at-once    so many at the same time [1]

Ends with 1 if a history failed, and with 3 if servers did not start and nothing else failed.";

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
    run_all(&options)
}

/// The next one begins when one is over, of the next store too, as most wait for their
/// longest fault.
fn run_all(options: &Options) -> ExitCode {
    let stores = options.stores.iter();
    let each = stores.flat_map(|store| (0..options.histories).map(move |_| *store));
    let all = Mutex::new(each.zip(options.seed..));
    let (tells, told) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..options.at_once {
            let (all, tells) = (&all, tells.clone());
            scope.spawn(move || {
                loop {
                    let next = all.lock().expect("no panic while it is drawn").next();
                    let Some((store, seed)) = next else { return };
                    let _ = tells.send((store, seed, run_one(store, seed)));
                }
            });
        }
        drop(tells);
        let mut summaries: Vec<_> = options.stores.iter().map(|s| Summary::of(s)).collect();
        let mut code = 0;
        let mut failures = String::new();
        for (store, seed, ended) in told {
            if let Some(failure) = ended.failure(store, seed) {
                // The end of a log shows why.
                eprintln!("FAILED: --store {store} --seed {seed}");
                failures += &failure;
            }
            code = ended.code_after(code);
            let summary = summaries.iter_mut().find(|summary| summary.store == store);
            let summary = summary.expect("one for each store");
            summary.add(ended);
            if summary.histories == options.histories {
                println!("{summary}");
            }
        }
        print!("{failures}");
        ExitCode::from(code)
    })
}

fn run_one(store: &'static str, seed: u64) -> Ended {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    let mut draws = Rng::with_seed(seed);
    // Before there is a worker or a fault, nothing is dlock's.
    let started = attempted(|| runtime.block_on(topology::start(store, &mut draws)));
    let (topology, setting) = match started {
        Ok(started) => started,
        Err(why) => return Ended::DidNotStart(why),
    };
    match attempted(|| runtime.block_on(history::run(topology, setting, draws))) {
        Ok(outcomes) => Ended::Judged(outcomes),
        Err(why) => Ended::Failed(why),
    }
}
