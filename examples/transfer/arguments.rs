//! The command line.

use std::error::Error;

use dlock::Config;
use lexopt::prelude::*;

use crate::options::value;

pub(crate) const USAGE: &str = "\
Usage: cargo run --example transfer -- [options]
  --transfers N     how many transfers each task makes (100; one by one 10)
  --tasks N         how many tasks make them at once (16)
  --accounts N      between how many accounts (4)
  --store URL       memory: or redis://host:port (else $DLOCK_URL, else memory:)
  --bank NAME       whose accounts; on Redis, several programs share a bank
  --one-by-one      take one lock and then the other, and see who gets stuck
  --without-lock    see what becomes of the money";

/// How a transfer is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Together,
    OneByOne,
    Unprotected,
}

#[derive(Debug)]
pub(crate) struct Arguments {
    transfers: Option<u32>,
    pub(crate) tasks: usize,
    pub(crate) accounts: usize,
    /// None for this program's memory.
    pub(crate) store: Option<String>,
    pub(crate) bank: String,
    pub(crate) how: How,
}

impl Arguments {
    /// None if the user asks what there is to choose.
    pub(crate) fn parse() -> Result<Option<Self>, Box<dyn Error + Send + Sync>> {
        let mut arguments = Self {
            transfers: None,
            tasks: 16,
            accounts: 4,
            store: std::env::var("DLOCK_URL").ok(),
            bank: format!("bank-{:08x}", fastrand::u32(..)),
            how: How::Together,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Short('h') | Long("help") => return Ok(None),
                Long("transfers") => {
                    arguments.transfers = Some(value(&mut parser, "--transfers")?);
                }
                Long("tasks") => arguments.tasks = value(&mut parser, "--tasks")?,
                Long("accounts") => arguments.accounts = value(&mut parser, "--accounts")?,
                Long("store") => arguments.store = Some(value(&mut parser, "--store")?),
                Long("bank") => arguments.bank = value(&mut parser, "--bank")?,
                Long("one-by-one") => arguments.how = How::OneByOne,
                Long("without-lock") => arguments.how = How::Unprotected,
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
        if arguments.tasks == 0 || arguments.accounts < 2 {
            return Err("it takes a task and two accounts".into());
        }
        Ok(Some(arguments))
    }

    /// How many transfers each task makes. Those that get stuck take their time.
    pub(crate) fn transfers(&self) -> u32 {
        let usual = if self.how == How::OneByOne { 10 } else { 100 };
        self.transfers.unwrap_or(usual)
    }
}
