//! What is run over a connection, with the values that go into it.

use std::time::Duration;

use crate::backend::{Mode, Request};
use crate::stores::asker::Asker;

/// What is run over a connection.
#[derive(Clone, Copy)]
pub(super) enum Work<'a> {
    /// A script, of whose answer the rows of so many columns count.
    Script(&'a str, usize),
    /// One statement, which a connection prepares at first.
    Quick(Together, &'a [Statement; 2], &'a Args<'a>),
}

/// What is done with locks together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// They are taken, which was not tried before.
    Take,
    /// They are given back, by those who have them.
    Release,
}

impl Together {
    /// The name of its script for so many locks, and how many columns that answers with.
    pub(super) fn script(self, locks: usize) -> (&'static str, usize) {
        match (self, locks) {
            (Self::Take, 1) => ("take", 4),
            (Self::Take, _) => ("take_together", 4),
            (Self::Release, 1) => ("release", 1),
            (Self::Release, _) => ("release_together", 1),
        }
    }
}

/// Values that go into a script.
#[derive(Default)]
pub struct Args<'a> {
    pub(super) key: &'a str,
    /// As an [`Asker`].
    pub(super) owner: String,
    pub(super) ttl: Duration,
    pub(super) mode: Mode,
    /// What is to be done if the lock is not free: a statement by its name, or nothing.
    pub(super) queue: &'static str,
    /// Of the tokens.
    pub(super) floor: u64,
}

/// The values of a statement that is prepared: the first is `$1`.
pub(super) const VALUES: [&str; 3] = ["key", "owner", "ttl"];

/// A statement that a connection prepares.
pub struct Statement {
    /// No other process has it.
    pub name: String,
    /// With `$1` for the first of its values.
    pub text: String,
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

/// The part of a millisecond that is left counts as a whole one.
pub(super) fn whole_ms(ttl: Duration) -> i64 {
    let whole = ttl.as_micros().div_ceil(1000);
    // What is added to the time of day must not overflow.
    i64::try_from(whole).unwrap_or(i64::MAX).min(i64::MAX / 4)
}
