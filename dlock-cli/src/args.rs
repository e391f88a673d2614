//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::duration;
use crate::exit::Exit;
use crate::say;
use crate::top::metrics::fetch::Endpoint;

/// Locks for scripts and cron jobs, over the store that your services use
#[derive(Debug, Parser)]
#[command(
    name = "dlock",
    version,
    after_help = "Examples:
  dlock run nightly -- ./report.sh        one at a time, on all machines
  dlock run -n nightly -- ./report.sh     … or not at all, if it runs already
  dlock ls                                which locks are held

DLOCK_URL names the store, for example redis://127.0.0.1:6379. DLOCK_NAMESPACE, DLOCK_LABEL,
DLOCK_TTL, DLOCK_TIMEOUT, DLOCK_REQUEST_TIMEOUT and DLOCK_TOKEN_FLOOR mean the same as for
services."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, ClapArgs)]
pub(crate) struct Common {
    /// The store, in place of DLOCK_URL; unlike that, others can see it in the list of processes
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Prints more on standard error: the causes of an error, and what the lock does
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Ls(Ls),
    Show(Show),
    Top(Top),
    Wait(Wait),
    Break(Break),
    Forget(Forget),
    Doctor(Doctor),
    /// Prints completions for a shell
    #[command(after_help = "Examples:
  dlock completions bash > /etc/bash_completion.d/dlock
  dlock completions zsh  > \"${fpath[1]}/_dlock\"")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Runs a command under a lock, or under several at once
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock run nightly -- ./report.sh
  dlock run -n --skip-ok nightly -- ./report.sh           from cron, on every machine
  dlock run -w 30s deploy:shop -- make deploy
  dlock run --once 20h report:monday -- ./report.sh       not again today, if it succeeds
  dlock run --permits 3 api:acme -- ./import.sh           three at a time
  dlock run account:1 account:2 -- ./transfer.sh 1 2      both or none

The command has DLOCK_KEY and DLOCK_TOKEN in its environment; with several keys, these have one
line for each.

Exit codes: the command's own, 128 + signal if a signal ended it; 0 the work is done already
(--once); 75 busy, timed out, or taken out of the queue; 74 the lock was lost, or was about to be
lost; 69 the store is down; 77 the store does not allow it; 78 a wrong setting, or the store cannot
do this; 64 a wrong command line; 126 the command cannot be run; 127 it is not found; 70, 71 dlock
or the system failed in another way.")]
pub(crate) struct Run {
    /// The keys to lock
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// Does not wait if the lock is held
    #[arg(short = 'n', long = "try", conflicts_with = "timeout")]
    pub(crate) try_once: bool,
    /// Waits no longer than this. Default: DLOCK_TIMEOUT, else for as long as it takes
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::or_zero)]
    pub(crate) timeout: Option<Duration>,
    /// Shares the lock with other readers
    #[arg(long, conflicts_with_all = ["permits", "once"])]
    pub(crate) read: bool,
    /// Lets at most N commands run under the lock at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "once")]
    pub(crate) permits: Option<u32>,
    /// Remembers for this time that the command succeeded, and does not run it again meanwhile
    #[arg(long, value_name = "DUR", value_parser = duration::above_zero)]
    pub(crate) once: Option<Duration>,
    /// How soon others get the lock when this machine dies. Default: DLOCK_TTL, else 30s
    #[arg(long, value_name = "DUR", value_parser = duration::above_zero)]
    pub(crate) ttl: Option<Duration>,
    /// Gives up the lock, and so ends the command, after this time and a ttl at most
    #[arg(long, value_name = "DUR", value_parser = duration::above_zero)]
    pub(crate) max_hold: Option<Duration>,
    /// Keeps the lock for at least this time
    #[arg(long, value_name = "DUR", value_parser = duration::or_zero)]
    pub(crate) min_hold: Option<Duration>,
    /// Sends TERM to the command this long before the lock would be lost; KILL follows when it is.
    /// Default: 5s, or less if the lease is too short for that
    #[arg(short, long, value_name = "DUR", value_parser = duration::or_zero)]
    pub(crate) kill_after: Option<Duration>,
    /// What happens to the command when the lock is lost
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,
    /// Exits with this code, in place of 75, if the tool does not get the lock
    #[arg(short = 'E', long, value_name = "N", default_value_t = Exit::BUSY)]
    pub(crate) busy_code: u8,
    /// Exits with 0 if the tool does not get the lock
    #[arg(long, conflicts_with = "busy_code")]
    pub(crate) skip_ok: bool,
    /// The command, with its arguments; no shell reads them
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What happens to a command whose lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM before the loss, as early as --kill-after says, and KILL when the lock is lost
    Kill,
    /// TERM before the loss, as early as --kill-after says, and nothing more
    Signal,
    /// Nothing: the command goes on without the lock
    Ignore,
}

/// Lists the locks that are held, or remembered as done
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock ls
  dlock ls stock: --sort left
  dlock ls stock: --watch 5s
  dlock ls -o json | jq -r '.[].key'")]
pub(crate) struct Ls {
    /// Lists only keys that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// The order of the list
    #[arg(long, value_name = "COLUMN", default_value = "key")]
    pub(crate) sort: Sort,
    /// The form of the output
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub(crate) output: Form,
    /// Repeats the list after each such pause, until it is interrupted. Without DUR: 2s
    #[arg(long, value_name = "DUR", num_args = 0..=1, default_missing_value = "2s", value_parser = duration::pause)]
    pub(crate) watch: Option<Duration>,
}

/// What a list is sorted by.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Sort {
    /// By key
    Key,
    /// What has been held for longest comes first
    Age,
    /// What ends first comes first
    Left,
    /// The lock with the most waiters comes first
    Waiters,
}

/// How a list is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// One line for each lock
    Table,
    /// One line for each holder, with everything that is known
    Wide,
    /// For programs
    Json,
}

/// Shows who holds a lock, and who waits for it
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock show stock:42
  dlock show stock:42 -o json")]
pub(crate) struct Show {
    /// The key of the lock
    pub(crate) key: String,
    /// The form of the output
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub(crate) output: Form,
}

/// Shows live who holds and waits for what, in a terminal
///
/// No store knows how often a lock is granted or lost. Services count this: name the URLs where
/// they export their metrics. Without these URLs, such a figure is a sample from one look to the
/// next, marked `~`, or it is `-`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock top
  dlock top stock: --interval 5s
  dlock top --metrics http://web-1:9000/metrics http://web-2:9000/metrics

While it runs, `?` shows which keys to press.")]
pub(crate) struct Top {
    /// Shows only keys that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// URLs where services export their metrics, in Prometheus's text format over plain HTTP
    #[arg(long, value_name = "URL", num_args = 1.., value_parser = Endpoint::parse)]
    pub(crate) metrics: Vec<Endpoint>,
    /// The time from one look at the store to the next
    #[arg(short, long, value_name = "DUR", default_value = "2s", value_parser = duration::pause)]
    pub(crate) interval: Duration,
    /// Shows at most this many locks, the first by key
    #[arg(short, long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// Takes a lock away from its holder, or a waiter out of its queue
///
/// The next waiter has the lock at once. The holder learns of it at its next renewal, and its work
/// goes on until then. So end its process, if you can.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock break stock:42                     asks, in a terminal
  dlock break stock:42 --yes               does not ask, whoever holds the lock
  dlock break stock:42 --token 1289        only if the holder has this token
  dlock break stock:42 --holder 9c1f….7@…  only the lease of this owner, one of several
  dlock break stock:42 --waiter 9c1f….8@…  takes this owner out of the queue

Exit codes: 0 the lock is broken, or nobody holds it, or the waiter is taken out; 75 it is still
held: by another holder, or you answered no; 64 a wrong command line; 69 the store is down; 77 the
store does not allow it; 78 the store cannot do this.")]
pub(crate) struct Break {
    /// The key of the lock
    pub(crate) key: String,
    /// Only if the holder has this fencing token, as `dlock show` prints it
    #[arg(long, value_name = "T", group = "whom")]
    pub(crate) token: Option<u64>,
    /// Only the lease of this owner, as `dlock show` prints it
    #[arg(long, value_name = "ID", group = "whom")]
    pub(crate) holder: Option<String>,
    /// Takes this owner out of the queue, as `dlock show` prints it
    #[arg(long, value_name = "ID", group = "whom")]
    pub(crate) waiter: Option<String>,
    /// Does not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Waits in the queue of a lock and returns when its turn has come
///
/// It takes the lock and gives it back at once. It waits as a writer does: readers and permits that
/// come later queue behind it.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock wait deploy && echo 'the deploy is over'
  dlock wait -w 5m deploy")]
pub(crate) struct Wait {
    /// The key of the lock
    pub(crate) key: String,
    /// Waits no longer than this. Default: DLOCK_TIMEOUT, else for as long as it takes
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::or_zero)]
    pub(crate) timeout: Option<Duration>,
}

/// Removes what `--once` remembers, so that the work is done again
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock forget report:monday")]
pub(crate) struct Forget {
    /// The key of the lock
    pub(crate) key: String,
}

/// Checks whether locks are reliable here, and says what to do
///
/// It connects to the servers, reads their versions and settings, and takes and gives back a lock
/// of its own.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock doctor
  dlock doctor -o json | jq -r '.[] | select(.level != \"ok\")'

Exit codes: 0 no check has failed, even if some warn; 69 the store is down; 77 the store does not
allow it; 78 a wrong setting.")]
pub(crate) struct Doctor {
    /// The form of the output
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub(crate) output: ReportForm,
}

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportForm {
    /// One line for each check
    Table,
    /// For programs
    Json,
}

/// Prints what clap says: `--help` on standard output, a mistake on standard error.
pub(crate) fn refuse(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        return match error.print() {
            Ok(()) => Exit::OK,
            Err(_) => Exit::BROKEN_PIPE,
        };
    }
    // Clap would print the whole help.
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        say::line("a command is missing; see `dlock --help`");
        return Exit::USAGE;
    }
    let text = error.render().to_string();
    let usage = text.split("\n\n").find(|part| part.starts_with("Usage:"));
    let usage = usage.unwrap_or_default().to_owned();
    // One line: what is wrong, and what the user may have meant.
    let said = text
        .split("\n\n")
        .filter(|part| !part.starts_with("Usage:") && !part.starts_with("For more information"));
    let words: Vec<_> = said.flat_map(str::split_whitespace).collect();
    let arguments = std::env::args_os().map(|one| one.to_string_lossy().into_owned());
    let text = without_urls(words.join(" "), arguments);
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let missing = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => &missing[..],
        _ => &[],
    };
    let hint = match missing.iter().any(|one| one.starts_with("<COMMAND>")) {
        true => ", behind `--`",
        false => "",
    };
    let of = subcommand(&usage);
    say::line(format_args!("{text}{hint}; see `dlock {of}--help`"));
    Exit::USAGE
}

/// The subcommand of this usage text, with a blank after it. Empty if it is the tool's own usage.
fn subcommand(usage: &str) -> String {
    let commands = Args::command();
    let named = usage.split_whitespace().nth(2);
    let known = named.filter(|name| commands.find_subcommand(name).is_some());
    known.map(|name| format!("{name} ")).unwrap_or_default()
}

/// Removes URLs from what clap says: one in the wrong place may contain a password. Clap repeats an
/// argument whole, or the part after its `=`, or the part after the letter of its option.
fn without_urls(mut text: String, arguments: impl Iterator<Item = String>) -> String {
    for argument in arguments.filter(|one| one.contains("://") || one.contains('@')) {
        let words: Vec<_> = argument.split_whitespace().collect();
        let argument = words.join(" ");
        let value = argument.split_once('=').map(|(_, value)| value);
        // Any letter before the scheme may be a short option, with the rest as its value. So each
        // rest that starts there is removed.
        let scheme = argument.find("://").unwrap_or(2);
        let starts = argument.char_indices().map(|(start, _)| start);
        let from_there = starts.take_while(|start| *start <= scheme);
        let parts = from_there.map(|start| &argument[start..]);
        for part in parts.chain(value).filter(|part| !part.is_empty()) {
            text = text.replace(part, "…");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::without_urls;

    #[test]
    fn a_url_in_the_wrong_place_is_not_repeated() {
        for (argument, said) in [
            (
                "redis://u:hunter2@h/?layout=redisson",
                "'redis://u:hunter2@h/?layout=redisson'",
            ),
            ("redis://u:hunter=2@h", "'redis://u:hunter=2@h'"),
            (
                "-wredis://u:hunter2@h",
                "value 'redis://u:hunter2@h' of '-w', 'edis://u:hunter2@h'",
            ),
            ("-nwredis://u:hunter2@h", "value 'redis://u:hunter2@h'"),
            (
                "--bogus=redis://u:hunter2@h",
                "'--bogus=redis://u:hunter2@h' or 'redis://u:hunter2@h'",
            ),
            ("redis://u:a  hunter2@h", "'redis://u:a hunter2@h'"),
            ("u:hunter2@h", "'u:hunter2@h'"),
        ] {
            let shown = without_urls(said.to_owned(), std::iter::once(argument.to_owned()));
            assert!(!shown.contains("hunter"), "{argument}: {shown}");
        }
    }
}
