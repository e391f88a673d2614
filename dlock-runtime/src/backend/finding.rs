//! What a look at a store has found.

/// Something of a store that was looked at, and how it is. For people, as the tool's
/// `dlock doctor` shows it; what is looked at may change with any minor version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How it is.
    pub level: Level,
    /// What was looked at, in a word: `server`, `version`, `persistence`, `eviction`.
    pub check: &'static str,
    /// What was found, of which server, and what to do. Never a password.
    pub message: String,
}

/// How something is that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Ok,
    /// Locks work, and may not always.
    Warn,
    /// Locks do not work.
    Fail,
}

impl Finding {
    /// One of this level.
    #[must_use]
    pub fn new(level: Level, check: &'static str, message: impl Into<String>) -> Self {
        Self {
            level,
            check,
            message: message.into(),
        }
    }
}
