//! What the errors of a database mean.

use std::fmt;
use std::time::Duration;

use crate::backend::BackendErrorKind;

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
#[derive(Clone, Copy, Debug)]
pub struct Meaning {
    pub(super) retry: RetryPolicy,
    pub(super) kind: BackendErrorKind,
    /// What to do about it.
    pub(super) advice: &'static str,
}

/// What can be done after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    /// Nothing: it would fail again.
    Stop,
    /// The script was undone, and may be repeated: a deadlock, a database that is
    /// busy.
    Again,
    /// The same, as somebody keeps a row that it needs.
    Kept,
    /// The connection has ended. Nobody knows whether the script was run.
    Reconnect,
}

impl Meaning {
    pub(super) const fn config(advice: &'static str) -> Self {
        Self {
            retry: RetryPolicy::Stop,
            kind: BackendErrorKind::Config,
            advice,
        }
    }

    pub(super) const fn unavailable(retry: RetryPolicy, advice: &'static str) -> Self {
        Self {
            retry,
            kind: BackendErrorKind::Unavailable,
            advice,
        }
    }
}
