//! `dlock run`: runs a command under a lock.
//!
//! There are three processes. The tool holds the lock, passes signals on, and ends the command when
//! the lock is lost. The launcher is this program in another mode: it starts in a process group of
//! its own, and becomes the command when the tool lets it. The watcher is this program in a third
//! mode: it ends the group before the lock is lost, if the tool cannot.

mod group;
pub(crate) mod launch;
pub(crate) mod signals;
mod supervise;
pub(crate) mod terminal;
pub(crate) mod watch;

use std::path::Path;
use std::time::Duration;

use dlock::{Config, LockError, LockGuard, LockManager, LockRequest, Patience};
use tokio::time::{Instant, sleep, timeout_at};

use self::signals::Signals;
use self::supervise::{Ended, Supervised};
use crate::args::{Common, OnLost, Run};
use crate::exit::Exit;
use crate::{connect, say, store};

/// How long the command has to end, between TERM and the loss, if `--kill-after` is not given. A
/// short lease makes it shorter, but not shorter than `LEAST_KILL_AFTER`.
const KILL_AFTER: Duration = Duration::from_secs(5);
const LEAST_KILL_AFTER: Duration = Duration::from_secs(1);

/// How often the tool asks whether the store remembers by now that the command succeeded.
const LOOK: Duration = Duration::from_millis(100);

const NOT_REMEMBERED: &str = "that the command succeeded may not be remembered: it may run again";

pub(crate) fn run(args: &Run, common: &Common) -> Result<Exit, Exit> {
    let config = labelled(args, store::config(common)?);
    let request_timeout = config.configured_request_timeout();
    let asked = args.ttl.unwrap_or_else(|| config.configured_ttl());
    // Checked before anything is asked of the store, and again with the ttl that was granted.
    kill_after(args, asked, asked, request_timeout)?;
    store::block_on(async {
        let mut signals = Signals::listen()?;
        let patience = match args.try_once {
            true => Patience::Try,
            false => connect::patience(args.timeout),
        };
        let (manager, patience) = connect::connect(config, patience, &mut signals).await?;
        let time_to_end = |granted| kill_after(args, asked, granted, request_timeout);
        let exit = under_lock(args, &manager, patience, time_to_end, &mut signals).await;
        store::close(&manager).await;
        Ok(exit)
    })
}

/// Labels the lock with the name of the command, which people know better than that of this tool.
/// `DLOCK_LABEL` overrides it.
fn labelled(args: &Run, config: Config) -> Config {
    if std::env::var_os("DLOCK_LABEL").is_some_and(|label| !label.is_empty()) {
        return config;
    }
    let program = args.command.first();
    let name = program.and_then(|program| Path::new(program).file_name());
    match name {
        Some(name) => config.labelled_as(&name.to_string_lossy()),
        None => config,
    }
}

/// How long before the end of its lease the command gets TERM. The ttl of the lease is `granted`:
/// the store may grant less than was `asked` for.
///
/// As long as renewals succeed, at least two thirds of the ttl are left, less the time that the
/// store may take to answer. If the result is not longer than that, TERM is sent only when a
/// renewal is late.
fn kill_after(
    args: &Run,
    asked: Duration,
    granted: Duration,
    request_timeout: Duration,
) -> Result<Duration, Exit> {
    let most = (granted * 2 / 3).saturating_sub(request_timeout);
    let wanted = args.kill_after.unwrap_or(KILL_AFTER);
    if args.on_lost == OnLost::Ignore || wanted <= most {
        return Ok(wanted);
    }
    let capped = match granted < asked {
        true => format!(" (the store grants no more; {asked:?} were asked for)"),
        false => String::new(),
    };
    if args.kill_after.is_none() && most >= LEAST_KILL_AFTER {
        return Ok(most);
    }
    let what = match args.kill_after {
        Some(wanted) => format!("--kill-after {wanted:?} is too long"),
        None => "the ttl is too short to tell the command before a loss".to_owned(),
    };
    // The message does not propose a --kill-after of zero: then the command would get no warning.
    let lower = match most.is_zero() {
        true => "",
        false => "--kill-after or ",
    };
    say::line(format_args!(
        "{what}: with a ttl of {granted:?}{capped} and a request timeout of {request_timeout:?}, \
         --kill-after may be {most:?} at most (two thirds of the ttl less a request timeout); \
         raise --ttl, or lower {lower}DLOCK_REQUEST_TIMEOUT"
    ));
    Err(Exit::CONFIG)
}

/// Says that the command has less time to end than usual. Only with `-v`: the user did not choose
/// this time, and a job that runs often would print it each time.
fn tell_if_short(args: &Run, time: Duration, granted: Duration) {
    if args.kill_after.is_none() && time < KILL_AFTER && say::is_verbose() {
        say::line(format_args!(
            "a lease of {granted:?} leaves the command {time:?} to end, and not {KILL_AFTER:?}"
        ));
    }
}

/// Takes the lock, runs the command, and gives the lock back.
async fn under_lock(
    args: &Run,
    manager: &LockManager,
    patience: Patience,
    time_to_end: impl Fn(Duration) -> Result<Duration, Exit>,
    signals: &mut Signals,
) -> Exit {
    let had = tokio::select! {
        had = acquire(args, manager, patience) => had,
        // This drops the request, which gives up its place in the queue.
        signal = signals.ends() => return Exit::Signal(signal),
    };
    let guard = match had {
        Ok(guard) => guard,
        Err(
            error @ (LockError::Busy { .. }
            | LockError::Timeout { .. }
            | LockError::TakenOut { .. }),
        ) => {
            // Nothing is printed, because cron sends all output by mail.
            if args.skip_ok && !say::is_verbose() {
                return Exit::OK;
            }
            Exit::of(&error);
            return Exit::Code(if args.skip_ok { 0 } else { args.busy_code });
        }
        Err(error) => return Exit::of(&error),
    };
    let started = time_to_end(guard.ttl())
        .inspect(|time| tell_if_short(args, *time, guard.ttl()))
        .and_then(|kill_after| Supervised::start(args, kill_after, &guard, signals));
    let ended = match started {
        Ok(command) => command.until_ended(&guard, signals).await,
        Err(exit) => Ended {
            exit,
            well: false,
            given_up: false,
        },
    };
    give_back(args, manager, guard, &ended, signals).await
}

async fn acquire(
    args: &Run,
    manager: &LockManager,
    patience: Patience,
) -> Result<LockGuard, LockError> {
    let request = manager.lock(args.keys.clone()).template("dlock run");
    let request = request.patience(patience);
    match args.once {
        Some(once) => with_options(args, request.once(once)).acquire().await,
        None => with_options(args, request).acquire().await,
    }
}

fn with_options<Runs>(args: &Run, mut request: LockRequest<Runs>) -> LockRequest<Runs> {
    if args.read {
        request = request.read();
    }
    if let Some(permits) = args.permits {
        request = request.permits(permits);
    }
    if let Some(ttl) = args.ttl {
        request = request.ttl(ttl);
    }
    if let Some(limit) = args.max_hold {
        request = request.max_hold(limit);
    }
    if let Some(least) = args.min_hold {
        request = request.min_hold(least);
    }
    request
}

async fn give_back(
    args: &Run,
    manager: &LockManager,
    guard: LockGuard,
    ended: &Ended,
    signals: &mut Signals,
) -> Exit {
    // A command that was told to end may not have finished its work, even if it returned 0.
    let done = args.once.is_some() && ended.well && !ended.given_up;
    if args.once.is_some() && ended.well && ended.given_up {
        say::line("as the command was told to end, it is not remembered as done");
    }
    let deadline = guard.deadline();
    let released = match done {
        true => guard.release_done().await,
        false => guard.release().await,
    };
    match released {
        Ok(()) => {}
        Err(error @ LockError::Lost { .. }) => {
            say::error(&error);
            if args.on_lost != OnLost::Ignore {
                return Exit::LOST;
            }
        }
        // Only the release failed: the command ran to its end under the lock, so its own exit code
        // counts.
        Err(error) => {
            say::error(&error);
            if let (true, Some(deadline), [key, ..]) = (done, deadline, &args.keys[..]) {
                tokio::select! {
                    () = is_remembered(manager, key, deadline) => {}
                    _ = signals.ends() => say::line(NOT_REMEMBERED),
                }
            }
        }
    }
    match ended.given_up {
        true => Exit::LOST,
        false => ended.exit,
    }
}

/// Waits until the store remembers that the command succeeded, after the store did not confirm it.
/// The library repeats the release in the background, until `deadline`: up to then nobody else can
/// have the lock. If the tool exited earlier, the command would run again.
async fn is_remembered(manager: &LockManager, key: &str, deadline: Instant) {
    say::line(
        "that the command succeeded is not remembered yet; it is tried again until the lease \
         ends, or a signal ends that",
    );
    let look = async {
        loop {
            match manager.inspect(key).await {
                Ok(Some(lock)) if lock.done.is_some() => return true,
                // The lock is neither held nor remembered as done: there is no lease left to mark.
                Ok(None) => return false,
                Ok(Some(_)) | Err(_) => sleep(LOOK).await,
            }
        }
    };
    say::line(match timeout_at(deadline, look).await {
        Ok(true) => "that the command succeeded is remembered now",
        _ => NOT_REMEMBERED,
    });
}
