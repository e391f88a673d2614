//! When something must have ended.

use std::time::{Duration, Instant};

/// When a call must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

/// The deadline has passed.
#[derive(Debug)]
pub struct Elapsed;

impl Deadline {
    /// So much later than now.
    pub fn after(wait: Duration) -> Self {
        Self::from(Instant::now(), wait)
    }

    /// So much later than `start`.
    pub fn from(start: Instant, wait: Duration) -> Self {
        // Far enough for any timeout that overflows.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        Self(start.checked_add(wait).unwrap_or_else(|| start + CENTURY))
    }

    /// As an instant.
    pub fn at(self) -> Instant {
        self.0
    }

    /// Not in any program's life.
    pub fn never() -> Self {
        Self::after(Duration::MAX)
    }

    /// This, or so much later than now if that is sooner.
    pub fn within(self, wait: Duration) -> Self {
        self.min(Self::after(wait))
    }

    /// How much time is left, by the machine's clock.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether there is none.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}
