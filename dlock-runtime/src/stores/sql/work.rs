//! What a connection runs, and the values for it.

use std::time::Duration;

use crate::backend::{Mode, Request};
use crate::duration::milliseconds_up;
use crate::stores::asker::Asker;

#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    /// A script. Its answer is the rows with this many columns.
    Script(&'a str, usize),
    /// This statement, which each connection prepares before it first uses it.
    Quick(Together, &'a Statement, &'a Args<'a>),
}

/// What can be done for several locks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// Take them, if they are free and nobody waits for them.
    Take,
    /// Give them back, for owners that hold them.
    Release,
}

impl Together {
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
    /// The owner, written as an [`Asker`].
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
            owner: Asker::of(request).to_string(),
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
