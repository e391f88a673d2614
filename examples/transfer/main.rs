//! Transfers between a few accounts, in all directions at once. Each needs the
//! locks of two accounts; the attribute takes both, in an order of its own, so
//! that two transfers never wait for each other.
//!
//! ```sh
//! cargo run --example transfer
//! cargo run --example transfer -- --one-by-one       # one lock, then the other: deadlocks
//! cargo run --example transfer -- --without-lock     # money comes and goes
//! DLOCK_TTL=3s DLOCK_REQUEST_TIMEOUT=1s cargo run --example transfer -- --store redis://127.0.0.1:6379 --bank mine
//! ```
//!
//! Start the last one several times at once: they share the accounts. Kill or
//! pause one of them: the money still adds up. The ttl is short there, so that you see the
//! others go on.

mod arguments;
mod bank;
#[path = "../options/mod.rs"]
mod options;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dlock::{Config, LockError, current, distributed_lock};
use tokio::task::JoinSet;

use arguments::{Arguments, How};
use bank::{Bank, BankError, Transfer};
use report::Report;

/// Longer than any run that goes well.
const LIMIT: Duration = Duration::from_secs(300);

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
enum TransferError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Bank(#[from] BankError),
}

/// Both locks or none. Whichever way round two transfers go, they do not wait
/// for each other.
#[distributed_lock(
    key = ["account:<transfer.from>", "account:<transfer.to>"],
    timeout = "1m"
)]
async fn transfer(bank: &dyn Bank, transfer: &Transfer) -> Result<(), TransferError> {
    // One token for each account, in the order of the keys above.
    let tokens = current().map(|held| held.tokens()).unwrap_or_default();
    Ok(bank::book(bank, transfer, &tokens).await?)
}

/// One lock and then the other: two transfers in opposite directions each hold
/// what the other waits for, until one of them gives up. In a debug build dlock
/// warns of it (`dlock::order`).
#[distributed_lock(key = "account:<transfer.from>", timeout = "1m")]
async fn transfer_one_by_one(bank: &dyn Bank, transfer: &Transfer) -> Result<(), TransferError> {
    let mut tokens = current().map(|held| held.tokens()).unwrap_or_default();
    with_the_other(bank, transfer, &mut tokens).await
}

#[distributed_lock(key = "account:<transfer.to>", timeout = "50ms")]
async fn with_the_other(
    bank: &dyn Bank,
    transfer: &Transfer,
    tokens: &mut Vec<dlock::FencingToken>,
) -> Result<(), TransferError> {
    tokens.extend(current().map(|held| held.token()));
    Ok(bank::book(bank, transfer, tokens).await?)
}

async fn serve(bank: &dyn Bank, arguments: &Arguments) -> Report {
    let mut report = Report::default();
    for _ in 0..arguments.transfers() {
        let wanted = Transfer::random(arguments.accounts);
        let outcome = match arguments.how {
            How::Together => transfer(bank, &wanted).await,
            How::OneByOne => transfer_one_by_one(bank, &wanted).await,
            How::Unprotected => bank::book(bank, &wanted, &[]).await.map_err(Into::into),
        };
        match outcome {
            Ok(()) => report.done += 1,
            Err(TransferError::Bank(BankError::Poor)) => report.poor += 1,
            Err(TransferError::Bank(BankError::Stale)) => report.stale += 1,
            Err(TransferError::Lock(LockError::Timeout { .. })) => report.timeouts += 1,
            Err(TransferError::Lock(LockError::Lost { .. })) => report.lost += 1,
            // A program that was paused finds its answers late. Whether the
            // bank has made the transfer or not, it has made all of it.
            Err(error) => {
                eprintln!("transfer: {error}");
                report.unclear += 1;
            }
        }
    }
    report
}

async fn run(arguments: Arguments) -> Result<ExitCode, AnyError> {
    let config = match &arguments.store {
        None => Config::default(),
        Some(url) => Config::from_env_at(url)?,
    };
    dlock::init(config.namespace(&*arguments.bank)).await?;
    let bank = bank::open(&arguments).await?;
    let before = bank.total().await?;

    let arguments = Arc::new(arguments);
    let mut tellers = JoinSet::new();
    for _ in 0..arguments.tasks {
        let (bank, arguments) = (Arc::clone(&bank), Arc::clone(&arguments));
        tellers.spawn(async move { serve(&*bank, &arguments).await });
    }
    let mut report = Report::default();
    while let Some(teller) = tellers.join_next().await {
        report.add(&teller?);
    }
    dlock::shutdown().await;
    let after = bank.total().await?;
    report.print(&arguments, before, after);
    Ok(if arguments.how == How::Unprotected || before == after {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::parse() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            println!("{}", arguments::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("transfer: {error}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match tokio::time::timeout(LIMIT, run(arguments)).await {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            eprintln!("transfer: {error}");
            ExitCode::from(2)
        }
        Err(_) => {
            eprintln!("transfer: not done after {LIMIT:?}");
            ExitCode::from(2)
        }
    }
}
