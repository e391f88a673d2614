//! The command line.

use std::error::Error;

use dlock::{Config, LockError};
use lexopt::prelude::*;

use crate::options::value;

pub(crate) const USAGE: &str = "\
Usage: cargo run --example flash_sale -- [options]
  --orders N        how many want to buy (5000)
  --tasks N         how many orders each process serves at once (32)
  --processes N     how many processes share the sale (1; in a shared store 4)
  --store URL       memory:, redis://host:port, sqlite:path or another that dlock
                    knows (else $DLOCK_URL, else memory:)
  --without-lock    see what happens";

pub(crate) struct Arguments {
    pub(crate) orders: u64,
    pub(crate) tasks: usize,
    pub(crate) processes: usize,
    pub(crate) store: Store,
    pub(crate) locked: bool,
    /// Names the sale, so that two of them share a store without meeting.
    pub(crate) sale: String,
    /// Which of several processes this is. They are started by the first one.
    pub(crate) process: Option<usize>,
}

/// Where both the stock and the locks are.
pub(crate) enum Store {
    Memory,
    /// At a URL, where several processes share it.
    Shared(String),
}

impl Arguments {
    /// None if the user asks what there is to choose.
    pub(crate) fn parse() -> Result<Option<Self>, Box<dyn Error + Send + Sync>> {
        let mut arguments = Self {
            orders: 5_000,
            tasks: 32,
            processes: 0,
            store: Store::Memory,
            locked: true,
            sale: format!("flash-sale-{:08x}", fastrand::u32(..)),
            process: None,
        };
        let mut url = std::env::var("DLOCK_URL").ok();
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("orders") => arguments.orders = value(&mut parser, "--orders")?,
                Long("tasks") => arguments.tasks = value(&mut parser, "--tasks")?,
                Long("processes") => arguments.processes = value(&mut parser, "--processes")?,
                Long("store") => url = Some(value(&mut parser, "--store")?),
                Long("without-lock") => arguments.locked = false,
                // What the first process tells the others.
                Long("sale") => arguments.sale = value(&mut parser, "--sale")?,
                Long("process") => arguments.process = Some(value(&mut parser, "--process")?),
                other => return Err(other.unexpected().into()),
            }
        }
        arguments.store = match url.filter(|url| !url.is_empty()) {
            None => Store::Memory,
            Some(url) => store(url)?,
        };
        if arguments.processes == 0 {
            arguments.processes = if matches!(arguments.store, Store::Memory) {
                1
            } else {
                4
            };
        }
        if arguments.processes > 1 && matches!(arguments.store, Store::Memory) {
            return Err(
                "`memory:` is one process's own; for several, add --store redis://…".into(),
            );
        }
        if arguments.orders == 0 || arguments.tasks == 0 {
            return Err("--orders and --tasks must be at least 1".into());
        }
        Ok(Some(arguments))
    }
}

fn store(url: String) -> Result<Store, LockError> {
    // dlock says what is wrong with a URL.
    Config::from_url(&url)?;
    match url.as_str() {
        "memory:" => Ok(Store::Memory),
        _ => Ok(Store::Shared(url)),
    }
}
