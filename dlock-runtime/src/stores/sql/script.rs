//! The protocol, as scripts of plain SQL.
//!
//! A script is sent as one message and run to its end by the database, whatever
//! becomes of the process that sent it: no transaction ever waits for a client,
//! so that one which is paused does not keep a row from the others. The files
//! in `statements/` have what the databases have in common, and a [`Dialect`]
//! what each says in its own way.
//!
//! A script is text without parameters to bind: with those, a statement is
//! prepared and run in separate messages, and a pooler between may send each to
//! another session. What goes into it is a number, or text that the dialect
//! makes a literal of ([`Args`]).

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::backend::Mode;
use crate::token::TOKENS_PER_GRANT;

/// A process whose sign of life is older than this is dead to the others, and
/// its places in the queues are void.
pub(super) const ALIVE: Duration = Duration::from_secs(4);

/// Who is first in a queue has this time to take the lock when it is free. Then
/// it goes to whoever asks.
pub(super) const CLAIM: Duration = Duration::from_millis(1500);

/// How often somebody cleans the tables.
pub(super) const CLEANED_EVERY: Duration = Duration::from_secs(2);

/// What a database says in its own way.
#[derive(Debug)]
pub struct Dialect {
    /// Begins a short transaction. Each of its statements sees what was
    /// committed before that statement.
    pub(super) begin: &'static str,
    /// The same for what its holder relies on after a restart of the database: a
    /// lease.
    pub(super) begin_lease: &'static str,
    /// The same for what must not be undone, whatever happens to the machine: a
    /// token that was given out.
    pub(super) begin_grant: &'static str,
    /// 1 if what such a transaction commits outlives a crash of the server's
    /// machine, as far as the server's settings tell, else 0.
    pub(super) durable: &'static str,
    /// The same of the tables that the tokens are in.
    pub(super) durable_tables: &'static str,
    /// What to set for both, for messages; empty if they always are.
    pub(super) durable_with: &'static str,
    /// Ends it.
    pub(super) commit: &'static str,
    /// Milliseconds since 1970, by the database's clock, as they are now and
    /// not when the transaction began.
    pub(super) now: &'static str,
    /// Makes the row of `$key` if there is none, and locks it until the end of
    /// the transaction.
    pub(super) lock: &'static str,
    /// Takes a free lock for which nobody waits, in the cheapest way: one row
    /// with the token if that was done.
    pub(super) take: &'static str,
    /// Frees the lock of `$owner`: one row if it held it.
    pub(super) free: &'static str,
    /// Says that `$process` is alive for `$alive` ms.
    pub(super) alive: &'static str,
    /// Tells the first in the queue of `$key`, if the database can.
    pub(super) wake: &'static str,
    /// Writes text as a literal.
    pub(super) text: fn(&mut String, &str),
}

/// The scripts of a dialect.
pub(super) struct Scripts {
    text: fn(&mut String, &str),
    pub(super) take: Script,
    acquire: HashMap<(Mode, Asks), Script>,
    renew: HashMap<Mode, Script>,
    begin: Script,
    commit: Script,
    pub(super) release: Script,
    pub(super) leave: Script,
    pub(super) give_up: Script,
    pub(super) look: Script,
    pub(super) beat: Script,
    pub(super) farewell: Script,
    pub(super) is_clean: Script,
    pub(super) clean: Script,
    inspect_all: Script,
    inspect: Script,
    list: Script,
}

/// What is to be done if the lock is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asks {
    /// Nothing.
    Try,
    /// Take a place in the queue.
    Queue,
    /// The same, for a process that has not shown lately that it is alive.
    QueueAndBeat,
}

/// Values that go into a script.
#[derive(Clone, Copy, Default)]
pub(super) struct Args<'a> {
    pub(super) key: &'a str,
    pub(super) owner: &'a str,
    pub(super) process: &'a str,
    pub(super) ttl: Duration,
}

pub(super) struct Script(Vec<Piece>);

enum Piece {
    Text(String),
    Param(Param),
}

#[derive(Clone, Copy)]
enum Param {
    Key,
    Owner,
    Process,
    Ttl,
}

const PARAMS: [(&str, Param); 4] = [
    ("$key", Param::Key),
    ("$owner", Param::Owner),
    ("$process", Param::Process),
    ("$ttl", Param::Ttl),
];

macro_rules! statements {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("statements/", $name, ".sql")))),*]
    };
}

/// What may stand in braces, besides the words of the dialect.
const PARTS: [(&str, &str); 13] = statements![
    "first",
    "free_for",
    "grant_read",
    "grant_write",
    "held",
    "is_read",
    "keep_place",
    "leave_queue",
    "mark_waited",
    "number",
    "pass",
    "place",
    "true_end",
];

impl Scripts {
    /// `pause` is how often the tables are cleaned; a statement takes no longer
    /// than `timeout`.
    pub(super) fn new(dialect: &Dialect, pause: Duration, timeout: Duration) -> Self {
        let compiler = Compiler {
            dialect,
            pause,
            timeout,
        };
        let compile = |source: &str| compiler.script(source, &[]);
        let mode_of = |mode| match mode {
            Mode::Read => ("'r'", "{grant_read}"),
            Mode::Write => ("'w'", "{grant_write}"),
        };
        let acquire = |mode, asks| {
            let (letter, grant) = mode_of(mode);
            let wait = include_str!("statements/wait.sql");
            let (wait, alive) = match asks {
                Asks::Try => ("", ""),
                Asks::Queue => (wait, ""),
                Asks::QueueAndBeat => (wait, "{beat}"),
            };
            let words = [
                ("wait", wait),
                ("alive", alive),
                ("beat", dialect.alive),
                ("grant", grant),
                ("mode", letter),
            ];
            let source = include_str!("statements/acquire.sql");
            ((mode, asks), compiler.script(source, &words))
        };
        let modes = [Mode::Read, Mode::Write];
        let inspect = |wanted: &str| {
            let source = include_str!("statements/inspect.sql");
            compile(&format!("{source} {wanted} ORDER BY l.name"))
        };
        Self {
            text: dialect.text,
            take: compile(dialect.take),
            acquire: modes
                .into_iter()
                .flat_map(|mode| {
                    [Asks::Try, Asks::Queue, Asks::QueueAndBeat].map(|asks| acquire(mode, asks))
                })
                .collect(),
            renew: HashMap::from([
                (
                    Mode::Read,
                    compile(include_str!("statements/renew_read.sql")),
                ),
                (
                    Mode::Write,
                    compile(include_str!("statements/renew_write.sql")),
                ),
            ]),
            begin: compile(dialect.begin_lease),
            commit: compile(dialect.commit),
            release: compile(include_str!("statements/release.sql")),
            leave: compile(include_str!("statements/leave.sql")),
            give_up: compile(include_str!("statements/give_up.sql")),
            look: compile(include_str!("statements/look.sql")),
            beat: compile(include_str!("statements/beat.sql")),
            farewell: compile(include_str!("statements/farewell.sql")),
            is_clean: compile(include_str!("statements/is_clean.sql")),
            clean: compile(include_str!("statements/clean.sql")),
            inspect_all: inspect(""),
            inspect: inspect("AND l.name = $key"),
            list: inspect("AND SUBSTR(l.name, 1, LENGTH($key)) = $key"),
        }
    }

    pub(super) fn acquire(&self, mode: Mode, asks: Asks, args: &Args<'_>) -> String {
        let script = self.acquire.get(&(mode, asks));
        script.map_or_else(String::new, |script| self.fill(script, args))
    }

    /// One row for each lease that was extended: its owner.
    pub(super) fn renew<'a>(&self, leases: impl Iterator<Item = (Mode, Args<'a>)>) -> String {
        let mut text = self.fill(&self.begin, &Args::default());
        for (mode, args) in leases {
            if let Some(script) = self.renew.get(&mode) {
                self.append(&mut text, script, &args);
            }
        }
        self.append(&mut text, &self.commit, &Args::default());
        text
    }

    pub(super) fn inspect(&self, key: &str) -> String {
        let args = Args {
            key,
            ..Args::default()
        };
        self.fill(&self.inspect, &args)
    }

    /// The locks whose key begins so.
    pub(super) fn list(&self, prefix: &str) -> String {
        if prefix.is_empty() {
            return self.fill(&self.inspect_all, &Args::default());
        }
        let args = Args {
            key: prefix,
            ..Args::default()
        };
        self.fill(&self.list, &args)
    }

    /// The text of a script.
    pub(super) fn fill(&self, script: &Script, args: &Args<'_>) -> String {
        let mut text = String::with_capacity(2048);
        self.append(&mut text, script, args);
        text
    }

    fn append(&self, text: &mut String, script: &Script, args: &Args<'_>) {
        for piece in &script.0 {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Param(Param::Key) => (self.text)(text, args.key),
                Piece::Param(Param::Owner) => (self.text)(text, args.owner),
                Piece::Param(Param::Process) => (self.text)(text, args.process),
                Piece::Param(Param::Ttl) => {
                    // It writes to memory.
                    let _ = write!(text, "{}", whole_ms(args.ttl));
                }
            }
        }
    }
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

/// The part of a millisecond that is left counts as a whole one.
fn whole_ms(ttl: Duration) -> i64 {
    let whole = ttl.as_micros().div_ceil(1000);
    // What is added to the time of day must not overflow.
    i64::try_from(whole).unwrap_or(i64::MAX).min(i64::MAX / 4)
}

struct Compiler<'a> {
    dialect: &'a Dialect,
    pause: Duration,
    timeout: Duration,
}

impl Compiler<'_> {
    /// Puts the parts in their places, and drops comments and what is empty.
    fn script(&self, source: &str, words: &[(&str, &str)]) -> Script {
        let text = self.expand(source, words);
        let mut compiled = String::new();
        for statement in text.split(';').map(str::trim) {
            if !statement.is_empty() {
                compiled.push_str(statement);
                compiled.push_str(";\n");
            }
        }
        split(&compiled)
    }

    fn expand(&self, source: &str, words: &[(&str, &str)]) -> String {
        let mut out = String::new();
        for line in source.lines().filter(|line| !line.starts_with("--")) {
            let mut rest = line;
            while let Some((before, after)) = rest.split_once('{') {
                out.push_str(before);
                let (word, after) = after.split_once('}').unwrap_or((after, ""));
                out.push_str(&self.expand(self.meaning(word, words), words));
                rest = after;
            }
            out.push_str(rest);
            out.push('\n');
        }
        for (name, value) in [
            ("$alive", ALIVE.as_millis()),
            ("$claim", CLAIM.as_millis()),
            ("$pause", self.pause.as_millis()),
            ("$seconds", u128::from(whole_seconds(self.timeout))),
            ("$timeout", self.timeout.as_millis().max(1)),
            ("$tokens", u128::from(TOKENS_PER_GRANT)),
        ] {
            out = out.replace(name, &value.to_string());
        }
        let mode = words.iter().find(|(name, _)| *name == "mode");
        if let Some((_, letter)) = mode {
            out = out.replace("$mode", letter);
        }
        out.trim_end().to_owned()
    }

    fn meaning<'w>(&'w self, word: &str, words: &[(&str, &'w str)]) -> &'w str {
        let Dialect {
            begin,
            begin_lease,
            begin_grant,
            durable,
            commit,
            now,
            lock,
            free,
            alive,
            wake,
            ..
        } = self.dialect;
        let own = [
            ("begin", *begin),
            ("begin_lease", *begin_lease),
            ("begin_grant", *begin_grant),
            ("durable", *durable),
            ("commit", *commit),
            ("now", *now),
            ("lock", *lock),
            ("free", *free),
            ("alive", *alive),
            ("wake", *wake),
        ];
        let all = words.iter().copied().chain(own).chain(PARTS);
        let found = all.into_iter().find(|(name, _)| *name == word);
        debug_assert!(found.is_some(), "no part is called `{word}`");
        found.map_or("", |(_, text)| text)
    }
}

/// Finds the parameters.
fn split(text: &str) -> Script {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        pieces.push(Piece::Text(before.to_owned()));
        let param = PARAMS.iter().find(|(name, _)| from.starts_with(name));
        debug_assert!(param.is_some(), "no parameter: {from}");
        let Some((name, param)) = param else { break };
        pieces.push(Piece::Param(*param));
        rest = &from[name.len()..];
    }
    pieces.push(Piece::Text(rest.to_owned()));
    Script(pieces)
}
