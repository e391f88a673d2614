//! The time by which something must have ended.

use std::time::{Duration, Instant};

/// The time by which a call must have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

/// The deadline has passed.
#[derive(Debug)]
pub struct Elapsed;

impl Deadline {
    /// The instant `wait` later than now.
    pub fn after(wait: Duration) -> Self {
        Self::from(Instant::now(), wait)
    }

    /// The instant `wait` later than `start`.
    pub fn from(start: Instant, wait: Duration) -> Self {
        // Far enough in the future for any timeout that overflows.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        Self(start.checked_add(wait).unwrap_or_else(|| start + CENTURY))
    }

    /// As an instant.
    pub fn at(self) -> Instant {
        self.0
    }

    /// A deadline that no program reaches.
    pub fn never() -> Self {
        Self::after(Duration::MAX)
    }

    /// This deadline, or `wait` from now if that is sooner.
    pub fn within(self, wait: Duration) -> Self {
        self.min(Self::after(wait))
    }

    /// How much time is left, by the machine's clock.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether no time is left.
    pub fn has_passed(self) -> bool {
        self.remaining().is_zero()
    }
}
