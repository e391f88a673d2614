//! A job that every copy of a service starts at the same tick, and that must be done
//! once for each: `once` remembers it when it is done. A copy that comes late finds that
//! out; and where one fails or dies in the middle, the next does it.
//!
//! ```sh
//! cargo run --example nightly_job                       # four copies, as tasks
//! cargo run --example nightly_job -- --first-fails      # and the first of each tick fails
//! cargo run --example nightly_job -- --store redis://127.0.0.1:6379 --job invoices
//! ```
//!
//! Start the last one in several terminals, and kill one of them: each tick the
//! job is done once, whoever is left. When all are gone, start one with `--tick` and a
//! number that was printed: it comes late, and finds the job done.

mod arguments;
mod journal;
#[path = "../options/mod.rs"]
mod options;

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

/// Why a copy has not done the job of a tick.
enum NotDone {
    /// Another copy has done it.
    Elsewhere,
    /// It failed, or the lock was not had for another reason.
    Failed(AnyError),
}

impl From<LockError> for NotDone {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Done { .. } => Self::Elsewhere,
            error => Self::Failed(error.into()),
        }
    }
}

/// The job of one tick. Each copy waits until it is done, or does it: of a copy that is
/// killed in the middle, the lock is gone after the ttl, `DLOCK_TTL` or 30 seconds.
/// Once it has returned `Ok`, the store remembers that for longer than any copy may be late.
#[distributed_lock(key = "nightly:<journal.job()>:<tick>", once = "1h")]
async fn nightly(journal: &Journal, tick: u64, copy: &str, fails: bool) -> Result<(), NotDone> {
    work(journal, tick, copy, fails)
        .await
        .map_err(NotDone::Failed)
}

async fn work(journal: &Journal, tick: u64, copy: &str, fails: bool) -> Result<(), AnyError> {
    let before = journal.begin(tick, copy).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    if fails && before == 0 {
        return Err("the printer is out of paper".into());
    }
    journal.done(tick, copy).await
}

/// One copy of the service, from tick to tick.
async fn copy(journal: Arc<Journal>, name: String, first: Option<u64>, ticks: u64, fails: bool) {
    // It starts late: the tick before has passed.
    let mut tick = first.unwrap_or_else(|| tick_at(now()));
    for _ in 0..ticks {
        match nightly(&journal, tick, &name, fails).await {
            Ok(()) => println!("tick {tick}: {name} did it"),
            Err(NotDone::Elsewhere) => println!("tick {tick}: {name} found it done"),
            Err(NotDone::Failed(error)) => eprintln!("tick {tick}: {name}: {error}"),
        }
        tick = next_tick().await;
        // No two clocks are the same.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..400))).await;
    }
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

fn tick_at(time: Duration) -> u64 {
    time.as_secs() / TICK.as_secs()
}

/// Waits for the next tick, which is the same for all copies.
async fn next_tick() -> u64 {
    let now = now();
    let tick = tick_at(now) + 1;
    let at = Duration::from_secs(tick * TICK.as_secs());
    tokio::time::sleep(at.saturating_sub(now)).await;
    tick
}

async fn run(arguments: Arguments) -> Result<ExitCode, AnyError> {
    let config = match &arguments.store {
        None => Config::default(),
        Some(url) => Config::from_env_at(url)?,
    };
    dlock::init(config).await?;
    let journal = Arc::new(Journal::open(&arguments).await?);
    let mut copies = JoinSet::new();
    for number in 1..=arguments.copies {
        let name = format!("{}.{number}", std::process::id());
        let Arguments {
            tick,
            ticks,
            first_fails,
            ..
        } = arguments;
        copies.spawn(copy(Arc::clone(&journal), name, tick, ticks, first_fails));
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
