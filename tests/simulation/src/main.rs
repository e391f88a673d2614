//! The whole runtime, from annotated functions down to the engine, over simulated
//! stores and a simulated network, in one thread, on simulated time. Every choice is
//! drawn from a seed.
//!
//! ```text
//! cargo run --release -p dlock-simulation -- --seeds 1000 [--from 7] [--store queue]
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

use std::process::ExitCode;

use lexopt::prelude::*;

use crate::stores::Kind;
use crate::summary::Summary;

const USAGE: &str = "Usage: dlock-simulation [--seeds N] [--from SEED] [--store KIND]
       dlock-simulation --seed SEED [--trace] [--store KIND]";

struct Arguments {
    from: u64,
    seeds: u64,
    only: Option<Kind>,
    trace: bool,
}

fn arguments() -> Result<Arguments, lexopt::Error> {
    let mut given = Arguments {
        from: 0,
        seeds: 1000,
        only: None,
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
    // Code that looks for a runtime finds one. It runs nothing.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::from(2);
        }
    };
    let mut summary = Summary::default();
    for seed in given.from..given.from.saturating_add(given.seeds) {
        summary.add(run::run(seed, given.only, runtime.handle(), given.trace));
    }
    match summary.show() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
