//! The command line.

use std::error::Error;

use dlock::Config;
use lexopt::prelude::*;

use crate::options::value;

pub(crate) const USAGE: &str = "\
Usage: cargo run --example nightly_job -- [options]
  --copies N        copies of the service in this program (4; on Redis 1)
  --ticks N         how many ticks to live for (3)
  --tick N          begin with this tick, as one that comes late (the present one)
  --store URL       memory: or redis://host:port (else $DLOCK_URL, else memory:)
  --first-fails     the first copy that begins a tick's job fails
  --job NAME        which job; on Redis, several programs share it";

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) copies: usize,
    pub(crate) ticks: u64,
    /// With which it begins; None for the present one.
    pub(crate) tick: Option<u64>,
    /// None for this program's memory.
    pub(crate) store: Option<String>,
    pub(crate) job: String,
    pub(crate) first_fails: bool,
}

impl Arguments {
    /// None if the user asks what there is to choose.
    pub(crate) fn parse() -> Result<Option<Self>, Box<dyn Error + Send + Sync>> {
        let mut copies = None;
        let mut arguments = Self {
            copies: 0,
            ticks: 3,
            tick: None,
            store: std::env::var("DLOCK_URL").ok(),
            job: "invoices".to_owned(),
            first_fails: false,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("copies") => copies = Some(value(&mut parser, "--copies")?),
                Long("ticks") => arguments.ticks = value(&mut parser, "--ticks")?,
                Long("tick") => arguments.tick = Some(value(&mut parser, "--tick")?),
                Long("store") => arguments.store = Some(value(&mut parser, "--store")?),
                Long("first-fails") => arguments.first_fails = true,
                Long("job") => arguments.job = value(&mut parser, "--job")?,
                other => return Err(other.unexpected().into()),
            }
        }
        arguments
            .store
            .take_if(|url| url.is_empty() || url == "memory:");
        if let Some(url) = &arguments.store {
            // dlock says what is wrong with a URL.
            Config::from_url(url)?;
        }
        arguments.copies = copies.unwrap_or(if arguments.store.is_some() { 1 } else { 4 });
        if arguments.copies == 0 || arguments.ticks == 0 {
            return Err("it takes a copy and a tick".into());
        }
        Ok(Some(arguments))
    }
}
