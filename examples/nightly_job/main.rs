//! A job that every copy of a service starts at the same tick, and that must run
//! once: `try` lets one copy have it, `min_hold` keeps it from a copy that comes
//! late, and `on_error` makes "another copy has it" an answer.
//!
//! ```sh
//! cargo run --example nightly_job                       # four copies, as tasks
//! cargo run --example nightly_job -- --store redis://127.0.0.1:6379 --job invoices
//! ```
//!
//! Start the last one in several terminals, and kill one of them: each tick the
//! job runs once, whoever is left.

mod arguments;
mod journal;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dlock::{Config, LockError, distributed_lock};
use tokio::task::JoinSet;

use arguments::Arguments;
use journal::Journal;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// A night lasts two seconds here.
const TICK: Duration = Duration::from_secs(2);

/// What became of the job in one copy at one tick.
enum Ran {
    Done,
    /// Another copy has it, or has had it.
    Elsewhere,
    /// A lock that was not had for another reason is a failure.
    Failed(AnyError),
}

impl From<LockError> for Ran {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Busy { .. } => Self::Elsewhere,
            error => Self::Failed(error.into()),
        }
    }
}

/// The job of one tick. It is soon done, but its lock is kept for longer than any
/// copy may be late: one that wakes up then must not find it free. The store
/// keeps it also when this program has ended. Of a copy that is killed in the
/// middle, the lock is gone after the ttl.
#[distributed_lock(
    key = "nightly:<journal.job()>:<tick>",
    ttl = "1s",
    try,
    min_hold = "30s",
    on_error = Ran::from
)]
async fn nightly(journal: &Journal, tick: u64, copy: &str) -> Ran {
    match work(journal, tick, copy).await {
        Ok(()) => Ran::Done,
        Err(error) => Ran::Failed(error),
    }
}

async fn work(journal: &Journal, tick: u64, copy: &str) -> Result<(), AnyError> {
    journal.begin(tick, copy).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    journal.done(tick, copy).await
}

/// One copy of the service, from tick to tick.
async fn copy(journal: Arc<Journal>, name: String, ticks: u64) {
    for _ in 0..ticks {
        let tick = next_tick().await;
        // No two clocks are the same.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..400))).await;
        match nightly(&journal, tick, &name).await {
            Ran::Done => println!("tick {tick}: {name} did it"),
            Ran::Elsewhere => println!("tick {tick}: {name} left it to another copy"),
            Ran::Failed(error) => eprintln!("tick {tick}: {name}: {error}"),
        }
    }
}

/// Waits for the next tick, which is the same for all copies.
async fn next_tick() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let tick = now.as_secs() / TICK.as_secs() + 1;
    let at = Duration::from_secs(tick * TICK.as_secs());
    tokio::time::sleep(at.saturating_sub(now)).await;
    tick
}

async fn run(arguments: Arguments) -> Result<ExitCode, AnyError> {
    let config = match &arguments.store {
        None => Config::default(),
        Some(url) => Config::from_url(url)?,
    };
    dlock::init(config).await?;
    let journal = Arc::new(Journal::open(&arguments).await?);
    let mut copies = JoinSet::new();
    for number in 1..=arguments.copies {
        let name = format!("{}.{number}", std::process::id());
        copies.spawn(copy(Arc::clone(&journal), name, arguments.ticks));
    }
    copies.join_all().await;
    dlock::shutdown().await;
    let twice = journal.ticks_done_twice().await?;
    for tick in &twice {
        eprintln!("tick {tick}: the job ran more than once");
    }
    Ok(if twice.is_empty() {
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
            eprintln!("nightly_job: {error}\n\n{}", arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    run(arguments).await.unwrap_or_else(|error| {
        eprintln!("nightly_job: {error}");
        ExitCode::from(2)
    })
}
