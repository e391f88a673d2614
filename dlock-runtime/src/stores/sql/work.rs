//! What a connection runs, and the values for it.

use std::time::Duration;

use crate::backend::{Mode, Request};
use crate::duration::milliseconds_up;
use crate::stores::stored_owner::StoredOwner;

#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    /// A script. Its answer is the rows with this many columns.
    Script(&'a str, usize),
    /// This statement, which each connection prepares before it first uses it.
    Quick(SingleStatement, &'a Statement, &'a Args<'a>),
}

/// What can be done for a lone lock by one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleStatement {
    /// Take it, as by `take`.
    Take,
    /// Take it for the first in its queue, as by `acquire`.
    Turn,
    /// Give it back, as by `release`.
    Release,
}

impl SingleStatement {
    pub(super) const ALL: [Self; 3] = [Self::Take, Self::Turn, Self::Release];

    pub(super) fn statement(self) -> &'static str {
        match self {
            Self::Take => "quick_take",
            Self::Turn => "quick_turn",
            Self::Release => "quick_release",
        }
    }

    /// The number of columns of its answer, which is that of the script.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) fn columns(self) -> usize {
        match self {
            Self::Take => Together::Take.script(1).1,
            Self::Turn => ACQUIRE_COLUMNS,
            Self::Release => Together::Release.script(1).1,
        }
    }
}

/// The number of columns of the answer to `acquire`.
pub(super) const ACQUIRE_COLUMNS: usize = 5;

/// What can be done for several locks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    /// Take them, if they are free and nobody waits for them.
    Take,
    /// Give them back, for owners that hold them.
    Release,
}

impl Together {
    pub(super) fn lone(self) -> SingleStatement {
        match self {
            Self::Take => SingleStatement::Take,
            Self::Release => SingleStatement::Release,
        }
    }

    /// The name of the script for this many locks, and the number of columns of its answer.
    pub(super) fn script(self, locks: usize) -> (&'static str, usize) {
        match (self, locks) {
            (Self::Take, 1) => ("take", 4),
            (Self::Take, _) => ("take_together", 4),
            (Self::Release, 1) => ("release", 1),
            (Self::Release, _) => ("release_together", 1),
        }
    }
}

/// The values for a script.
#[derive(Default)]
pub struct Args<'a> {
    pub(super) key: &'a str,
    /// The owner, written as a [`StoredOwner`].
    pub(super) owner: String,
    pub(super) ttl: Duration,
    pub(super) mode: Mode,
    /// The name of the statement that enters the queue; empty for a request that does not wait.
    pub(super) queue: &'static str,
    /// The new floor of the tokens.
    pub(super) floor: u64,
}

/// The values of a prepared statement, in the order of its parameters: the first is `$1`.
pub(super) const VALUES: [&str; 3] = ["key", "owner", "ttl"];

/// A statement that connections prepare.
pub struct Statement {
    /// Another text has another name: behind a pooler, a session may have prepared it for another
    /// process.
    pub name: String,
    /// With `$1`, `$2` and so on for its values.
    pub text: String,
    /// Goes before it in the same message, and limits how long it waits.
    pub limits: String,
}

impl<'a> Args<'a> {
    pub(super) fn of(request: &'a Request) -> Self {
        Self {
            key: &request.key,
            owner: StoredOwner::of(request).to_string(),
            ttl: request.ttl,
            mode: request.mode,
            ..Self::default()
        }
    }

    pub(super) fn of_key(key: &'a str) -> Self {
        Self {
            key,
            ..Self::default()
        }
    }
}

/// In milliseconds, rounded up.
pub(super) fn whole_ms(ttl: Duration) -> i64 {
    // The sum with the time of day must not overflow.
    let limited = milliseconds_up(ttl).min(i64::MAX.unsigned_abs() / 4);
    limited.cast_signed()
}
