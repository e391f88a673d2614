//! The protocol, as scripts of plain SQL.
//!
//! A script is sent as one message, and the database runs it to its end, whatever becomes of the
//! process that sent it. So a transaction never waits for a client, and a client that is paused
//! keeps no row from others. `protocol.sql` has what the databases have in common. A name in braces
//! stands for the statement of that name, or for a word that each database writes in its own way,
//! in its `words.sql`. A `words.sql` may also replace a statement of `protocol.sql`.
//!
//! The words:
//!
//! - `begin` begins a short transaction, in which each statement sees what was committed before
//!   that statement.
//! - `limits` limits how long the statements wait that follow without a transaction.
//! - `begin_brief` begins a short transaction that waits for a row for a moment only.
//! - `begin_lease` begins one for a lease, on which its holder relies even after a restart of the
//!   database.
//! - `begin_grant` begins one for what must never be undone, whatever happens to the machine: a
//!   token that was given out.
//! - `permits` is the number of permits behind the `owner` of a place in the queue.
//! - `durable` is 1 if what `begin_grant` commits outlives a crash of the server's machine, as far
//!   as the server's settings tell, else 0.
//! - `durable_tables` is 1 if the tables that have the tokens outlive it, else 0.
//! - `version_of_server` is its version as text.
//! - `read_only` is, for messages, what keeps the server from taking writes; empty if nothing does.
//! - `now` is the time in milliseconds since 1970, by the database's clock, at this moment and not
//!   when the transaction began.
//! - `lock` makes the row of `$key` if there is none, and locks it until the end of the
//!   transaction.
//! - `take` takes, in the cheapest way, locks that are free and that nobody waits for. One row for
//!   each that was taken: its key, the token, `durable` and a 0. For a lock whose body has been
//!   done, the last column is 2. (Other statements of the script have fewer columns.)
//! - `hurry`: from here on, the script waits for a moment only. A row that another session keeps
//!   must not keep the rows of other locks.
//! - `calm` ends `hurry`.
//! - `wake` notifies the first waiters in the queues of these locks.
//! - `wake_all` notifies all waiters of this lock that its body has been done, if it has.
//! - `wake_beside` notifies the waiters for whom there is room beside the owner, if it has the
//!   lock.
//! - `raise_rows` raises the tokens of all rows, including those that others are making.
//! - `is_over` is the condition for removing a row.
//! - `quick_take`, if `QUICK` has it, takes a lock that has a row, is free and that nobody waits for.
//!   It is one statement and a transaction of its own, and waits for a row for a moment only. It may
//!   also say that the lock is held: then the last column is 1.
//! - `quick_turn` takes a free lock in the same way for the writer that is first in its queue, and
//!   answers as `acquire`.
//! - `quick_release` gives a lock back in the same way, and notifies as `release` does.
//! - `free` ends the leases of these owners. One row for each that was held: its key.
//! - `remove_mark` removes the mark of what has been done. One row if there was one.
//! - `create_tables` creates the tables of `schema` that do not exist.
//! - `upgrade_readers` and `upgrade_locks` change the tables of the previous version, or fail.
//! - `change` and `changed` stand around these changes.
//!
//! Text in square brackets is repeated as a list, with an item for each of the requests that go
//! together. These are sorted by their keys, so that two transactions that lock the same rows do
//! not wait for each other. `$hurry` and `$calm` stand for the statements of these names if there
//! are several requests, and else for nothing.
//!
//! A script is text without bound parameters. With parameters, a statement is prepared and run by
//! separate messages, and a pooler between may send each to another session. The values in a script
//! are numbers, or text that the database writes as a literal ([`Args`]).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::slice;
use std::time::Duration;

use super::database::Database;
use super::work::{Args, Statement, VALUES, whole_ms};
use crate::backend::{Mode, Owner, Request, SHOWN_WAITERS};
use crate::token::TOKENS_PER_GRANT;

/// A process whose last sign of life is older than this counts as dead, and its places in the
/// queues are void.
pub(super) const ALIVE: Duration = Duration::from_secs(4);

/// How long a free lock is kept for the first in its queue. After that, it goes to any request that
/// asks.
pub(super) const CLAIM: Duration = Duration::from_millis(1500);

/// The limits if several locks go together: `HURRY` for the wait for one row, `MOMENT` for a whole
/// statement. Meanwhile, the rows of the other locks are kept.
const HURRY: Duration = Duration::from_millis(100);
const MOMENT: Duration = Duration::from_millis(500);

/// How often the tables are cleaned.
pub(super) const CLEANED_EVERY: Duration = Duration::from_secs(2);

/// A counter that is further above the floor than this was written by another program: counters
/// begin at the floor, and no lock is granted 10¹⁵ times.
pub(super) const ROOM: u64 = 1 << 56;

/// The statements of an SQL file with their names. Each follows a line `--- name`.
fn read(file: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let parts = file.split("--- ").skip(1);
    parts.filter_map(|part| part.split_once('\n'))
}

/// The statements of a database, and its words, by name.
fn sources<D: Database>() -> HashMap<&'static str, &'static str> {
    let common = read(include_str!("protocol.sql"));
    common.chain(read(D::WORDS)).collect()
}

/// The name of a value, and what follows it.
fn split_value(behind_sign: &str) -> (&str, &str) {
    let end = behind_sign.find(|c: char| !c.is_ascii_lowercase());
    behind_sign.split_at(end.unwrap_or(behind_sign.len()))
}

/// All statements and words of a database by name, with the values filled in that are the same in
/// every script.
pub(super) struct Scripts {
    compiled: HashMap<&'static str, String>,
    literal: fn(&mut String, &str),
}

impl Scripts {
    /// For the backend with the name `process`, of a service with this label. No statement takes
    /// longer than `timeout`.
    pub(super) fn new<D: Database>(process: Owner, label: Option<&str>, timeout: Duration) -> Self {
        let sources = sources::<D>();
        let mark = label.map(D::mark).unwrap_or_default();
        let mut own_name = String::new();
        D::literal(&mut own_name, &process.to_string());
        // Callers wait a little longer, so that the database can say what it has waited for.
        let limit = timeout / 8 * 7;
        let compile = |source: &str| {
            let mut text = expand(source, &sources);
            for (name, value) in [
                ("$alive", ALIVE.as_millis().to_string()),
                (
                    "$brief",
                    HURRY.min(timeout / 4).as_millis().max(1).to_string(),
                ),
                ("$claim", CLAIM.as_millis().to_string()),
                (
                    "$moment",
                    MOMENT.min(timeout / 2).as_millis().max(1).to_string(),
                ),
                ("$pause", CLEANED_EVERY.as_millis().to_string()),
                ("$process", own_name.clone()),
                ("$room", ROOM.to_string()),
                ("$shown", SHOWN_WAITERS.to_string()),
                ("$seconds", whole_seconds(limit).to_string()),
                ("$timeout", limit.as_millis().max(1).to_string()),
                ("$tokens", TOKENS_PER_GRANT.to_string()),
            ] {
                text = text.replace(name, &value);
            }
            // A word may be empty, which leaves an empty statement.
            let statements = text.split(';').map(str::trim);
            let statements = statements.filter(|statement| !statement.is_empty());
            statements.fold(String::new(), |text, statement| {
                text + &mark + statement + ";\n"
            })
        };
        Self {
            compiled: sources
                .iter()
                .map(|(name, source)| (*name, compile(source)))
                .collect(),
            literal: D::literal,
        }
    }

    /// The SQL that creates the tables, on one line, for messages. The tables of SQLite are always
    /// created by dlock.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn tables<D: Database>() -> String {
        let sources = sources::<D>();
        let text = expand("{schema}", &sources);
        let statements = text.split(';').map(|statement| {
            let words: Vec<_> = statement.split_whitespace().collect();
            words.join(" ")
        });
        let statements: Vec<_> = statements.filter(|one| !one.is_empty()).collect();
        let line = statements.join("; ").replace("( ", "(");
        line.replace(" )", ")").replace(" ,", ",") + ";"
    }

    /// The script that extends these leases. It answers with one row for each that was extended:
    /// its owner.
    pub(super) fn renew(&self, leases: &[&Request]) -> String {
        let mut text = self.fill("begin_lease", &[Args::default()]);
        for lease in leases {
            let statement = match lease.mode {
                Mode::Read | Mode::Permits(_) => "renew_read",
                Mode::Write => "renew_write",
            };
            self.append(&mut text, statement, &[Args::of(lease)]);
        }
        text + "COMMIT"
    }

    /// The statement of this name, for a connection to prepare.
    pub(super) fn statement(&self, name: &str) -> Statement {
        let mut pieces = self
            .compiled
            .get(name)
            .map_or("", String::as_str)
            .split('$');
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let (value, rest) = split_value(piece);
            let number = VALUES.iter().position(|name| *name == value);
            debug_assert!(number.is_some(), "there is no value `{value}`");
            // Writing to a `String` does not fail.
            let _ = write!(text, "${}{rest}", number.unwrap_or_default() + 1);
        }
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Statement {
            name: format!("dlock_{name}_{:016x}", hasher.finish()),
            text,
            limits: self.compiled.get("hurry").cloned().unwrap_or_default(),
        }
    }

    /// The script of this name: for one request, or for several if the script has lists.
    pub(super) fn fill(&self, name: &str, all: &[Args<'_>]) -> String {
        let mut text = String::with_capacity(2048);
        self.append(&mut text, name, all);
        text
    }

    fn append(&self, text: &mut String, name: &str, all: &[Args<'_>]) {
        let script = self.compiled.get(name);
        debug_assert!(script.is_some(), "there is no script `{name}`");
        self.expand(text, script.map_or("", String::as_str), all);
    }

    fn expand(&self, text: &mut String, mut script: &str, all: &[Args<'_>]) {
        while let Some((before, behind)) = script.split_once(['$', '[']) {
            text.push_str(before);
            if script[before.len()..].starts_with('[') {
                let (item, rest) = behind.split_once(']').unwrap_or((behind, ""));
                for (number, one) in all.iter().enumerate() {
                    text.push_str(if number > 0 { ", " } else { "" });
                    self.expand(text, item, slice::from_ref(one));
                }
                script = rest;
            } else {
                let (value, rest) = split_value(behind);
                self.value(text, value, all);
                script = rest;
            }
        }
        text.push_str(script);
    }

    fn value(&self, text: &mut String, value: &str, all: &[Args<'_>]) {
        let Some(args) = all.first() else { return };
        match (value, args.mode) {
            ("key", _) => (self.literal)(text, args.key),
            ("owner", _) => (self.literal)(text, &args.owner),
            ("out", _) => (self.literal)(text, numbers(&args.owner)),
            ("mode", Mode::Read) => text.push_str("'r'"),
            ("mode", Mode::Write) => text.push_str("'w'"),
            ("mode", Mode::Permits(_)) => text.push_str("'p'"),
            ("most", mode) => {
                let most = match mode {
                    Mode::Read => i64::MAX,
                    Mode::Write => 0,
                    Mode::Permits(most) => most.into(),
                };
                let _ = write!(text, "{most}");
            }
            ("ttl", _) => {
                // Writing to a `String` does not fail.
                let _ = write!(text, "{}", whole_ms(args.ttl));
            }
            ("floor", _) => {
                let _ = write!(text, "{}", args.floor);
            }
            ("grant", Mode::Read) => self.append(text, "grant_read", all),
            ("grant", Mode::Write) => self.append(text, "grant_write", all),
            ("grant", Mode::Permits(_)) => self.append(text, "grant_permit", all),
            ("beside", Mode::Permits(_)) => self.append(text, "wake_beside", all),
            ("permits", Mode::Permits(_)) => self.append(text, "look_for_room", all),
            ("beside" | "permits", Mode::Read | Mode::Write) => {}
            ("queue", _) if args.queue.is_empty() => {}
            ("queue", _) => self.append(text, args.queue, all),
            ("hurry" | "calm", _) if all.len() == 1 => {}
            ("hurry" | "calm", _) => self.append(text, value, all),
            _ => debug_assert!(false, "there is no value `{value}`"),
        }
    }
}

/// Replaces the names in braces, and drops comments.
fn expand(source: &str, sources: &HashMap<&str, &str>) -> String {
    let lines = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let mut pieces = text.trim_end().split('{');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (word, rest) = piece.split_once('}').unwrap_or((piece, ""));
        let meaning = sources.get(word);
        debug_assert!(meaning.is_some(), "there is no statement `{word}`");
        out.push_str(&expand(meaning.unwrap_or(&""), sources));
        out.push_str(rest);
    }
    out
}

/// The numbers that identify an owner, without what follows them. The table `dlock_process` has
/// these beside the names of processes, which are numbers of the same kind: no two are equal.
fn numbers(owner: &str) -> &str {
    owner.split(['@', '/']).next().unwrap_or_default()
}

/// The longest wait for a row, for a database that counts in seconds. Never 0, which would mean no
/// wait, or one without an end.
fn whole_seconds(timeout: Duration) -> u64 {
    // The longest time that the databases take is a year.
    timeout.as_secs().clamp(1, 31_536_000)
}

/// How long a script that the database has received may wait before it is run: the script itself
/// limits how long a statement waits.
pub(super) fn patience(timeout: Duration) -> Duration {
    timeout.max(Duration::from_secs(whole_seconds(timeout)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name and every value that a statement uses exists.
    fn are_complete<D: Database>() {
        let scripts = Scripts::new::<D>(Owner::unique(), Some("orders"), Duration::from_secs(5));
        for mode in [Mode::Read, Mode::Write, Mode::Permits(7)] {
            let args = |key| Args {
                queue: "wait_alive",
                mode,
                ..Args::of_key(key)
            };
            for name in scripts.compiled.keys() {
                for all in [&[args("key")][..], &[args("a"), args("b")]] {
                    let text = scripts.fill(name, all);
                    assert!(!text.contains(['{', '$', '[']), "{name}: {text}");
                }
            }
        }
    }

    /// Runs this for each database.
    macro_rules! each_database {
        ($check:ident) => {
            #[cfg(feature = "mysql")]
            $check::<crate::stores::sql::mysql::MySqlDatabase>();
            #[cfg(feature = "postgres")]
            $check::<crate::stores::sql::postgres::PostgresDatabase>();
            #[cfg(feature = "sqlite")]
            $check::<crate::stores::sql::sqlite::SqliteFile>();
        };
    }

    #[test]
    fn nothing_is_left_open_in_a_script() {
        each_database!(are_complete);
    }

    /// The clock of this machine may differ from those of others, so no script contains its time.
    fn have_no_time_of_ours<D: Database>() {
        let scripts = Scripts::new::<D>(Owner::unique(), Some("orders"), Duration::from_secs(5));
        let args = Args {
            queue: "wait_alive",
            ..Args::of_key("key")
        };
        let all = || {
            let mut all: Vec<_> = scripts.compiled.keys().copied().collect();
            all.sort_unstable();
            all.into_iter()
                .map(|name| (name, scripts.fill(name, slice::from_ref(&args))))
        };
        let before: Vec<_> = all().collect();
        std::thread::sleep(Duration::from_millis(5));
        for (before, now) in before.into_iter().zip(all()) {
            assert_eq!(before, now);
        }
    }

    /// Behind a pooler, a process uses what another has prepared in the session.
    fn are_shared<D: Database>() {
        let of_a_process = || {
            let scripts =
                Scripts::new::<D>(Owner::unique(), Some("orders"), Duration::from_secs(5));
            let quick = D::QUICK.iter();
            quick
                .map(|what| scripts.statement(what.statement()).name)
                .collect::<Vec<_>>()
        };
        assert_eq!(of_a_process(), of_a_process());
    }

    #[test]
    fn all_processes_prepare_the_same_statements() {
        each_database!(are_shared);
    }

    #[test]
    fn time_is_what_the_database_says() {
        each_database!(have_no_time_of_ours);
    }
}
