//! What the errors of a database mean.

use std::fmt;
use std::time::Duration;

use crate::stores::meaning;

/// A database as it is named in messages, where no password is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(super) name: String,
    pub(super) request_timeout: Duration,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What an error of a database means.
pub(super) type Meaning = meaning::Meaning<RetryPolicy>;

/// What can be done after an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Nothing: it would fail again.
    #[default]
    Stop,
    /// The script was undone, and may be repeated: a deadlock, a database that is
    /// busy.
    Again,
    /// The same, as somebody keeps a row that it needs.
    Kept,
    /// The connection has ended. Nobody knows whether the script was run.
    Reconnect,
}
