//! The whole runtime, from annotated functions down to the engine, over simulated
//! stores and a simulated network, in one thread, on simulated time. Every choice is
//! drawn from a seed.
//!
//! ```text
//! cargo run --release -p dlock-simulation -- --seeds 1000 [--from 7] [--store queue] [--jobs 2]
//! cargo run --release -p dlock-simulation -- --seed 7 --trace
//! ```

mod checker;
mod faults;
mod history;
mod network;
mod run;
mod scenario;
mod stores;
mod summary;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;

use lexopt::prelude::*;

use crate::stores::Kind;
use crate::summary::Summary;

const USAGE: &str = "Usage: dlock-simulation [--seeds N] [--from SEED] [--store KIND] [--jobs N]
       dlock-simulation --seed SEED [--trace] [--store KIND]";

struct Arguments {
    from: u64,
    seeds: u64,
    only: Option<Kind>,
    /// So many seeds at a time, each in a thread.
    jobs: usize,
    trace: bool,
}

fn arguments() -> Result<Arguments, lexopt::Error> {
    let mut given = Arguments {
        from: 0,
        seeds: 1000,
        only: None,
        jobs: 1,
        trace: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seeds") => given.seeds = parser.value()?.parse()?,
            Long("from") => given.from = parser.value()?.parse()?,
            Long("seed") => {
                given.from = parser.value()?.parse()?;
                given.seeds = 1;
            }
            Long("store") => {
                let name = parser.value()?.string()?;
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
                given.only = Some(kind.ok_or("there is no such kind of store")?);
            }
            Long("jobs") => given.jobs = parser.value()?.parse()?,
            Long("trace") => given.trace = true,
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(given)
}

fn main() -> ExitCode {
    let given = match arguments() {
        Ok(given) => given,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let seeds = Mutex::new(given.from..given.from.saturating_add(given.seeds));
    let summary = Mutex::new(Summary::default());
    let ended = thread::scope(|scope| {
        let jobs = 0..given.jobs.max(1);
        let jobs = jobs.map(|_| scope.spawn(|| run_all(&given, &seeds, &summary)));
        let jobs: Vec<_> = jobs.collect();
        let mut ended = jobs.into_iter().map(|job| job.join());
        ended.find(|job| !matches!(job, Ok(Ok(()))))
    });
    match ended {
        Some(Ok(Err(error))) => {
            eprintln!("no runtime: {error}");
            return ExitCode::from(2);
        }
        // It has said why.
        Some(_) => return ExitCode::FAILURE,
        None => {}
    }
    let Ok(summary) = summary.into_inner() else {
        return ExitCode::FAILURE;
    };
    match summary.show() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// One seed after the other, until there is none left.
fn run_all(
    given: &Arguments,
    seeds: &Mutex<Range<u64>>,
    summary: &Mutex<Summary>,
) -> std::io::Result<()> {
    // Code that looks for a runtime finds one. It runs nothing.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    loop {
        let Some(seed) = seeds.lock().ok().and_then(|mut seeds| seeds.next()) else {
            return Ok(());
        };
        let run = || run::run(seed, given.only, runtime.handle(), given.trace);
        // A panic on a simulated thread ends the run. The seed is named all the same.
        let outcome = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panicked| run::Outcome::panicked(seed, given.only, &*panicked));
        if let Ok(mut summary) = summary.lock() {
            summary.add(outcome);
        }
    }
}
