//! The protocol, as scripts of plain SQL.
//!
//! A script is sent as one message and run to its end by the database, whatever
//! becomes of the process that sent it: no transaction ever waits for a client,
//! so that one which is paused does not keep a row from the others. In `protocol.sql`
//! is what the databases have in common. A name in braces stands for another of its
//! statements, or for a word that each database says in its own way, in its
//! `words.sql`; so may it say one of the statements.
//!
//! | word | |
//! |---|---|
//! | `begin` | begins a short transaction, each of whose statements sees what was committed before that statement |
//! | `begin_lease` | the same for what its holder relies on after a restart of the database: a lease |
//! | `begin_grant` | the same for what must not be undone, whatever happens to the machine: a token that was given out |
//! | `permits` | the number behind the `owner` of a place in the queue |
//! | `durable` | 1 if what such a transaction commits outlives a crash of the server's machine, as far as the server's settings tell, else 0 |
//! | `durable_tables` | the same of the tables that the tokens are in |
//! | `version_of_server` | as text |
//! | `read_only` | what keeps it from taking writes, for messages; empty if nothing does |
//! | `now` | milliseconds since 1970, by the database's clock, as they are now and not when the transaction began |
//! | `lock` | makes the row of `$key` if there is none, and locks it until the end of the transaction |
//! | `take` | takes locks that are free and that nobody waits for, in the cheapest way: one row for each that was taken, with its key, the token, `durable` and a 0, as other statements of the script have fewer columns; or a 2 for one that has been done |
//! | `hurry` | from here on waits for a moment only: a row that somebody keeps is not to keep those of others |
//! | `calm` | ends that |
//! | `wake` | tells those who are first in the queues of these locks |
//! | `wake_all` | tells all who wait for this lock that it has been done, if it has |
//! | `wake_beside` | tells those for whom there is room beside the owner, if it is had by one |
//! | `raise_rows` | raises the tokens of the rows that are there, and of those that others are making |
//! | `is_over` | whether a row may be removed |
//! | `quick_take` | if it has such (`IS_QUICK`): takes a lock that has a row, is free and that nobody waits for, with one statement that ends by itself and waits for a row for a moment only |
//! | `quick_release` | gives such a lock back if nobody is to be told, in the same way |
//! | `free` | ends the leases of these owners: one row with the key for each that was held |
//! | `remove_mark` | makes free what has been done: one row if it had been |
//! | `create_tables` | makes what `schema` has, and is nothing if that is there |
//! | `upgrade_readers`, `upgrade_locks` | make that of what the version before had, or fail |
//! | `change`, `changed` | what stands around that |
//!
//! What is in square brackets is a list, with an item for each of the requests that
//! go together, in the order of their keys: two transactions that lock the same rows
//! do not wait for each other. Where there are several, `$hurry` and `$calm` stand for
//! statements of these names, and else for nothing.
//!
//! A script is text without parameters to bind: with those, a statement is
//! prepared and run in separate messages, and a pooler between may send each to
//! another session. What goes into it is a number, or text that the database
//! makes a literal of ([`Args`]).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::slice;
use std::time::Duration;

use super::database::Database;
use super::work::{Args, Statement, VALUES, whole_ms};
use crate::backend::{Mode, Owner, Request, SHOWN_WAITERS};
use crate::token::TOKENS_PER_GRANT;

/// A process whose sign of life is older than this is dead to the others, and
/// its places in the queues are void.
pub(super) const ALIVE: Duration = Duration::from_secs(4);

/// Who is first in a queue has this time to take the lock when it is free. Then
/// it goes to whoever asks.
pub(super) const CLAIM: Duration = Duration::from_millis(1500);

/// Where several go together, so long is one row waited for, and all that a statement
/// waits for: they keep other rows meanwhile.
const HURRY: Duration = Duration::from_millis(100);
const MOMENT: Duration = Duration::from_millis(500);

/// How often somebody cleans the tables.
pub(super) const CLEANED_EVERY: Duration = Duration::from_secs(2);

/// A counter further above the floor than this was written by somebody else: it begins at
/// the floor, and no lock is granted a thousand million million times.
pub(super) const ROOM: u64 = 1 << 56;

/// What is in a file of SQL, by name: each stands behind a line with its name.
fn read(file: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let parts = file.split("--- ").skip(1);
    parts.filter_map(|part| part.split_once('\n'))
}

/// The statements of a database and its words by their names, with what does not
/// change from one script to the next.
pub(super) struct Scripts {
    compiled: HashMap<&'static str, String>,
    literal: fn(&mut String, &str),
}

impl Scripts {
    /// For a backend that calls itself `process`, and its service `label`; a statement
    /// takes no longer than `timeout`.
    pub(super) fn new<D: Database>(process: Owner, label: Option<&str>, timeout: Duration) -> Self {
        let common = read(include_str!("protocol.sql"));
        let sources: HashMap<_, _> = common.chain(read(D::WORDS)).collect();
        let mark = label.map(D::mark).unwrap_or_default();
        let mut own_name = String::new();
        D::literal(&mut own_name, &process.to_string());
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
                ("$seconds", whole_seconds(timeout).to_string()),
                ("$timeout", timeout.as_millis().max(1).to_string()),
                ("$tokens", TOKENS_PER_GRANT.to_string()),
            ] {
                text = text.replace(name, &value);
            }
            // Without what is empty, as a word may be.
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

    /// What makes the tables, on one line, for messages. SQLite makes its own.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn tables<D: Database>() -> String {
        let common = read(include_str!("protocol.sql"));
        let sources: HashMap<_, _> = common.chain(read(D::WORDS)).collect();
        let text = expand("{schema}", &sources);
        let statements = text.split(';').map(|statement| {
            let words: Vec<_> = statement.split_whitespace().collect();
            words.join(" ")
        });
        let statements: Vec<_> = statements.filter(|one| !one.is_empty()).collect();
        let line = statements.join("; ").replace("( ", "(");
        line.replace(" )", ")").replace(" ,", ",") + ";"
    }

    /// One row for each lease that was extended: its owner.
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
    pub(super) fn statement(&self, name: &str, process: Owner) -> Statement {
        let mut pieces = self
            .compiled
            .get(name)
            .map_or("", String::as_str)
            .split('$');
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let end = piece.find(|c: char| !c.is_ascii_lowercase());
            let (value, rest) = piece.split_at(end.unwrap_or(piece.len()));
            let number = VALUES.iter().position(|name| *name == value);
            debug_assert!(number.is_some(), "there is no value `{value}`");
            // It writes to memory.
            let _ = write!(text, "${}{rest}", number.unwrap_or_default() + 1);
        }
        Statement {
            name: format!("dlock_{name}_{process}"),
            text,
        }
    }

    /// The script of this name: for one request, or for several that have lists in it.
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
                let end = behind.find(|c: char| !c.is_ascii_lowercase());
                let (value, rest) = behind.split_at(end.unwrap_or(behind.len()));
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
                // It writes to memory.
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

/// Puts what is in braces in its place, and drops comments.
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

/// By which an owner is known, without what is said of it. As processes are known by those
/// of an owner too, no two of which are the same, they can stand in one table.
fn numbers(owner: &str) -> &str {
    owner.split(['@', '/']).next().unwrap_or_default()
}

/// How long the database waits for a row at most, where it counts in seconds: 0
/// would be not at all, or without end.
fn whole_seconds(timeout: Duration) -> u64 {
    let whole = timeout.as_millis().div_ceil(1000);
    // What the databases take at most: a year.
    u64::try_from(whole)
        .unwrap_or(u64::MAX)
        .clamp(1, 31_536_000)
}

/// A script that was sent may be run for so long afterwards, as the database
/// limits how long a statement waits.
pub(super) fn patience(timeout: Duration) -> Duration {
    timeout.max(Duration::from_secs(whole_seconds(timeout)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a name or a value stands for is there, in every statement.
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

    /// The clock of this machine is not that of the others.
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

    #[test]
    fn time_is_what_the_database_says() {
        each_database!(have_no_time_of_ours);
    }
}
