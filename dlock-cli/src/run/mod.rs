//! `dlock run`: a command under a lock.
//!
//! Three processes. The tool holds the lock, passes signals on and ends the command when the
//! lock is lost. The command runs in a process group of its own, which the launcher makes:
//! the tool's own program, which becomes the command when it is told to. The watcher, the
//! tool's own program once more, ends the group at the deadline if the tool cannot.

mod group;
pub(crate) mod launch;
pub(crate) mod signals;
mod supervise;
pub(crate) mod terminal;
pub(crate) mod watch;

use dlock::{Config, LockError, LockGuard, LockManager, LockRequest, Patience};

use self::signals::Signals;
use self::supervise::{Ended, Supervised};
use crate::args::{Common, OnLost, Run};
use crate::exit::Exit;
use crate::{say, store};

pub(crate) fn run(args: &Run, common: &Common) -> Result<Exit, Exit> {
    let config = store::config(common)?;
    check_times(args, &config)?;
    store::block_on(async {
        let mut signals = Signals::listen()?;
        let connecting = store::connect(config);
        let manager = tokio::select! {
            manager = connecting => manager?,
            signal = signals.ends() => return Ok(Exit::of_signal(signal)),
        };
        let exit = under_lock(args, &manager, &mut signals).await;
        store::close(&manager).await;
        Ok(exit)
    })
}

/// A lease is never nearer to its end than two thirds of its ttl, less the time that the
/// store may take to answer; with less warning than that, TERM is sent only if something is
/// wrong.
fn check_times(args: &Run, config: &Config) -> Result<(), Exit> {
    let ttl = args.ttl.unwrap_or_else(|| config.get_ttl());
    let most = (ttl * 2 / 3).saturating_sub(config.get_request_timeout());
    if args.on_lost == OnLost::Ignore || args.kill_after <= most {
        return Ok(());
    }
    say::line(format_args!(
        "--kill-after {:?} is too long: with a ttl of {ttl:?} and a request timeout of {:?} it \
         may be {most:?} at most (two thirds of the ttl less a request timeout); raise --ttl, or \
         lower --kill-after or DLOCK_REQUEST_TIMEOUT",
        args.kill_after,
        config.get_request_timeout(),
    ));
    Err(Exit::CONFIG)
}

/// Takes the lock, runs the command, gives the lock back.
async fn under_lock(args: &Run, manager: &LockManager, signals: &mut Signals) -> Exit {
    let had = tokio::select! {
        had = acquire(args, manager) => had,
        // The place in the queue goes back.
        signal = signals.ends() => return Exit::of_signal(signal),
    };
    let guard = match had {
        Ok(guard) => guard,
        Err(error @ (LockError::Busy { .. } | LockError::Timeout { .. })) => {
            // Cron sends a mail about whatever is printed.
            if args.skip_ok && !say::is_verbose() {
                return Exit::OK;
            }
            Exit::of(&error);
            return Exit(if args.skip_ok { 0 } else { args.busy_code });
        }
        Err(error) => return Exit::of(&error),
    };
    let ended = match Supervised::start(args, &guard) {
        Ok(command) => command.until_ended(&guard, signals).await,
        Err(exit) => Ended {
            exit,
            well: false,
            given_up: false,
        },
    };
    give_back(args, guard, &ended).await
}

async fn acquire(args: &Run, manager: &LockManager) -> Result<LockGuard, LockError> {
    let request = manager.lock(args.keys.clone()).template("dlock run");
    match args.once {
        Some(once) => with_options(args, request.once(once)).acquire().await,
        None => with_options(args, request).acquire().await,
    }
}

fn with_options<Runs>(args: &Run, mut request: LockRequest<Runs>) -> LockRequest<Runs> {
    if args.try_once {
        request = request.patience(Patience::Try);
    }
    if let Some(timeout) = args.timeout {
        request = request.patience(Patience::Within(timeout));
    }
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

async fn give_back(args: &Run, guard: LockGuard, ended: &Ended) -> Exit {
    let done = args.once.is_some() && ended.well;
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
        // The command ran under the lock to its end.
        Err(error) => {
            say::error(&error);
            if done {
                say::line("that the command succeeded may not be remembered");
            }
        }
    }
    match ended.given_up {
        true => Exit::LOST,
        false => ended.exit,
    }
}
