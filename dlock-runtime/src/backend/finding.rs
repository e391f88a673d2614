//! The results of examining a store.

/// One thing that was checked in a store, and its state. It is for people, as `dlock doctor`
/// shows it; the checks may change with any minor version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The state of what was checked.
    pub level: Level,
    /// What was checked, in one word: `server`, `version`, `persistence`, `eviction`.
    pub check: &'static str,
    /// What was found, on which server, and what to do. Never contains a password.
    pub message: String,
}

/// The state of something that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// It is as it should be.
    Ok,
    /// Locks work now, but may not always.
    Warn,
    /// Locks do not work.
    Fail,
}

impl Finding {
    /// A finding of this level.
    #[must_use]
    pub fn new(level: Level, check: &'static str, message: impl Into<String>) -> Self {
        Self {
            level,
            check,
            message: message.into(),
        }
    }
}
