//! What the errors of a database mean.

use crate::stores::meaning;

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
    /// The script was undone, as somebody keeps a row that it needs.
    Kept,
    /// The connection has ended. Nobody knows whether the script was run.
    Reconnect,
}
