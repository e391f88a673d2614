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
  dlock ls                                what is held

The store is that of DLOCK_URL, such as redis://127.0.0.1:6379; DLOCK_NAMESPACE, DLOCK_LABEL,
DLOCK_TTL, DLOCK_TIMEOUT and DLOCK_REQUEST_TIMEOUT count as for services."
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
    /// The store, in place of DLOCK_URL (which others do not see in the list of processes)
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Says more on standard error: what lies behind an error, and what the lock does
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
        /// Which
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

The command has DLOCK_KEY and DLOCK_TOKEN in its environment, of several keys one a line.

Exit codes: the command's own, 128 + signal if one ended it; 75 busy, timed out, or taken out of
the queue; 74 the lock was lost, or about to be; 69 the store is down; 77 not allowed there; 78
configuration; 64 usage; 126 the command cannot be run; 127 it is not found; 70, 71 dlock or the
system failed otherwise.")]
pub(crate) struct Run {
    /// What to lock
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
    /// Does not wait if the lock is held
    #[arg(short = 'n', long = "try", conflicts_with = "timeout")]
    pub(crate) try_once: bool,
    /// Waits no longer than this; else DLOCK_TIMEOUT, else for as long as it takes
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::or_zero)]
    pub(crate) timeout: Option<Duration>,
    /// Shares the lock with other readers
    #[arg(long, conflicts_with_all = ["permits", "once"])]
    pub(crate) read: bool,
    /// At most so many commands under the lock at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "once")]
    pub(crate) permits: Option<u32>,
    /// Remembers for so long that the command succeeded; meanwhile it is not run
    #[arg(long, value_name = "DUR", value_parser = duration::above_zero)]
    pub(crate) once: Option<Duration>,
    /// How long the lock outlives a machine that dies; else DLOCK_TTL, else 30s
    #[arg(long, value_name = "DUR", value_parser = duration::above_zero)]
    pub(crate) ttl: Option<Duration>,
    /// Gives up the lock, and so ends the command, after this and a ttl at most
    #[arg(long, value_name = "DUR", value_parser = duration::above_zero)]
    pub(crate) max_hold: Option<Duration>,
    /// Keeps the lock for at least this long
    #[arg(long, value_name = "DUR", value_parser = duration::or_zero)]
    pub(crate) min_hold: Option<Duration>,
    /// How long before the lock would be lost the command is sent TERM; KILL follows when it is.
    /// Else 5s, or less where the lease is too short for that
    #[arg(short, long, value_name = "DUR", value_parser = duration::or_zero)]
    pub(crate) kill_after: Option<Duration>,
    /// What becomes of the command when the lock is lost
    #[arg(long, value_name = "WHAT", default_value = "kill")]
    pub(crate) on_lost: OnLost,
    /// Exits with this if the lock is not had, in place of 75
    #[arg(short = 'E', long, value_name = "N", default_value_t = Exit::BUSY)]
    pub(crate) busy_code: u8,
    /// Exits with 0 if the lock is not had
    #[arg(long, conflicts_with = "busy_code")]
    pub(crate) skip_ok: bool,
    /// The command, with its arguments; no shell reads them
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// What becomes of a command whose lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM --kill-after before, and KILL when the lock is lost
    Kill,
    /// TERM --kill-after before, and no more
    Signal,
    /// Nothing: it goes on without the lock
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
    /// Only keys that begin so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// In which order
    #[arg(long, value_name = "COLUMN", default_value = "key")]
    pub(crate) sort: Sort,
    /// In which form
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub(crate) output: Form,
    /// Again and again, so long after each other, until it is interrupted; 2s if not said
    #[arg(long, value_name = "DUR", num_args = 0..=1, default_missing_value = "2s", value_parser = duration::pause)]
    pub(crate) watch: Option<Duration>,
}

/// What a list is sorted by.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Sort {
    /// By key
    Key,
    /// What ends first, first
    Left,
    /// What is waited for most, first
    Waiters,
}

/// How a list is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// A line for each lock
    Table,
    /// A line for each holder, with all that is known
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
    /// Which
    pub(crate) key: String,
    /// In which form
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub(crate) output: Form,
}

/// Shows live who holds and waits for what, in a terminal
///
/// What no store knows, as how often a lock is granted and lost, the services count: name where
/// they export their metrics. Without that it is a sample from look to look, marked `~`, or `-`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock top
  dlock top stock: --interval 5s
  dlock top --metrics http://web-1:9000/metrics http://web-2:9000/metrics

`?` shows the keys.")]
pub(crate) struct Top {
    /// Only keys that begin so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Where services export their metrics in the text format of Prometheus, over plain HTTP
    #[arg(long, value_name = "URL", num_args = 1.., value_parser = Endpoint::parse)]
    pub(crate) metrics: Vec<Endpoint>,
    /// How long it is from one look at the store to the next
    #[arg(short, long, value_name = "DUR", default_value = "2s", value_parser = duration::pause)]
    pub(crate) interval: Duration,
    /// Looks at so many locks at most, the first by key
    #[arg(short, long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

/// Takes a lock away from its holder, or a waiter out of its queue
///
/// The next who waits has the lock at once. The holder is told at its next renewal, and its
/// work goes on until then: end its process, if you can.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock break stock:42                     asks, in a terminal
  dlock break stock:42 --yes               whoever holds it
  dlock break stock:42 --token 1289        only who has this token, as `dlock show` prints it
  dlock break stock:42 --holder 9c1f….7@…  only this owner; of several holders, one
  dlock break stock:42 --waiter 9c1f….8@…  takes this one out of the queue

Exit codes: 0 it is broken, or nobody holds it; 75 it is held still: by somebody else, or you
said no; 64 usage; 69 the store is down; 77 not allowed there; 78 the store cannot do this.")]
pub(crate) struct Break {
    /// Which
    pub(crate) key: String,
    /// Only if its holder has this fencing token
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
/// It takes the lock and gives it back at once. It waits as one who wants the lock for itself:
/// readers and permits that come later queue behind it.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock wait deploy && echo 'the deploy is over'
  dlock wait -w 5m deploy")]
pub(crate) struct Wait {
    /// Which
    pub(crate) key: String,
    /// Waits no longer than this; else DLOCK_TIMEOUT, else for as long as it takes
    #[arg(short = 'w', long, value_name = "DUR", value_parser = duration::or_zero)]
    pub(crate) timeout: Option<Duration>,
}

/// Drops what `--once` remembers, so that it is done again
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock forget report:monday")]
pub(crate) struct Forget {
    /// Which
    pub(crate) key: String,
}

/// Looks whether locks can be relied on here, and says what to do
///
/// It reaches the servers, reads their versions and settings, and takes and gives back a lock of
/// its own.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  dlock doctor
  dlock doctor -o json | jq -r '.[] | select(.level != \"ok\")'

Exit codes: 0 if nothing has failed, warnings or not; 69 the store is down; 77 not allowed there;
78 configuration.")]
pub(crate) struct Doctor {
    /// In which form
    #[arg(short, long, value_name = "FORM", default_value = "table")]
    pub(crate) output: ReportForm,
}

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportForm {
    /// A line for each thing that was looked at
    Table,
    /// For programs
    Json,
}

/// What clap says: `--help` on standard output, a mistake on standard error.
pub(crate) fn refuse(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        return match error.print() {
            Ok(()) => Exit::OK,
            Err(_) => Exit::BROKEN_PIPE,
        };
    }
    // Clap would print all of its help.
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        say::line("a command is missing; see `dlock --help`");
        return Exit::USAGE;
    }
    let text = error.render().to_string();
    let usage = text.split("\n\n").find(|part| part.starts_with("Usage:"));
    let usage = usage.unwrap_or_default().to_owned();
    // In one line: what is wrong, and what may have been meant.
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

/// Whose usage it is, with a blank behind it; nothing if it is that of the tool.
fn subcommand(usage: &str) -> String {
    let commands = Args::command();
    let named = usage.split_whitespace().nth(2);
    let known = named.filter(|name| commands.find_subcommand(name).is_some());
    known.map(|name| format!("{name} ")).unwrap_or_default()
}

/// A URL that stands where clap did not look for one may hold a password. Clap repeats an
/// argument whole, or what stands behind its `=`, or behind the letter of its option.
fn without_urls(mut text: String, arguments: impl Iterator<Item = String>) -> String {
    for argument in arguments.filter(|one| one.contains("://") || one.contains('@')) {
        let words: Vec<_> = argument.split_whitespace().collect();
        let argument = words.join(" ");
        let value = argument.split_once('=').map(|(_, value)| value);
        // Of letters that stand before a scheme, nobody knows which are options.
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
