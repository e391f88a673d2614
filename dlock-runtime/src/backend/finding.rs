//! The results of examining a store.

use std::time::{Duration, SystemTime};

/// One thing that was checked in a store, and its state. It is for people, as `dlock doctor`
/// shows it; the checks may change with any minor version.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The state of what was checked.
    pub level: Level,
    /// What was checked, in one word: `server`, `version`, `persistence`, `clock`.
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

const CLOCK: &str = "clock";

/// Clocks that are set by NTP may differ by this much.
const APART: Duration = Duration::from_secs(1);

impl Finding {
    /// Whether the clock of `whose` is this machine's. It showed `shown` at some time between two
    /// moments by this machine's clock. `harm` is what a clock that is wrong does.
    #[doc(hidden)]
    #[must_use]
    pub fn of_clock(whose: &str, shown: SystemTime, seen: [SystemTime; 2], harm: &str) -> Self {
        match compared(whose, shown, seen) {
            Ok(same) => Self::new(Level::Ok, CLOCK, same),
            Err(apart) => Self::new(
                Level::Warn,
                CLOCK,
                format!("{apart}: no lock rests on it, but {harm}; set both clocks by NTP"),
            ),
        }
    }

    /// Like [`of_clock`](Self::of_clock), for a clock that dlock neither uses nor shows: a
    /// difference is only mentioned.
    #[doc(hidden)]
    #[must_use]
    pub fn of_idle_clock(whose: &str, shown: SystemTime, seen: [SystemTime; 2]) -> Self {
        let what = compared(whose, shown, seen)
            .unwrap_or_else(|apart| format!("{apart}; nothing here goes by it"));
        Self::new(Level::Ok, CLOCK, what)
    }

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

/// Says how far a clock is from this machine's. `Err`: they are not the same.
fn compared(whose: &str, shown: SystemTime, [from, to]: [SystemTime; 2]) -> Result<String, String> {
    let ahead = shown.duration_since(to).unwrap_or_default();
    let behind = from.duration_since(shown).unwrap_or_default();
    let apart = ahead.max(behind);
    if apart < APART {
        let within = apart.max(to.duration_since(from).unwrap_or_default());
        return Ok(format!("{whose} is this machine's, within {within:.1?}"));
    }
    let how = if ahead > behind { "ahead of" } else { "behind" };
    Err(format!("{whose} is {apart:.1?} {how} this machine's"))
}
