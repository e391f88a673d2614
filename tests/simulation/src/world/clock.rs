//! A clock that goes a little too fast or too slow.

use std::time::Duration;

use super::{At, nanos};

/// Shows `offset + time × rate`. The fastest and the slowest of a run differ by
/// one in a hundred, which is what a lease's margin is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// By so many parts of a million it is too fast.
    drift: i64,
    /// What it was stepped by.
    offset: i64,
}

/// Half of one in a hundred, in parts of a million.
pub(crate) const MOST_DRIFT: i64 = 4_950;

const MILLION: i64 = 1_000_000;

impl Clock {
    /// Of this drift.
    pub(crate) fn new(drift: i64) -> Self {
        Self { drift, offset: 0 }
    }

    /// What it shows.
    pub(crate) fn shows(&self, at: At) -> Duration {
        // As many as that is in the first hours: wider numbers are divided slowly.
        let rate = MILLION + self.drift;
        let time = nanos(at);
        let passed = match i64::try_from(time)
            .ok()
            .and_then(|time| time.checked_mul(rate))
        {
            Some(product) => i128::from(product / MILLION),
            None => i128::from(time) * i128::from(rate) / i128::from(MILLION),
        };
        let shown = passed + i128::from(self.offset);
        Duration::from_nanos(u64::try_from(shown).unwrap_or(0))
    }

    /// When it shows this, or a moment later.
    pub(crate) fn when(&self, shown: Duration) -> At {
        let shown = i128::from(nanos(shown)) - i128::from(self.offset);
        let rate = MILLION + self.drift;
        let time = match i64::try_from(shown)
            .ok()
            .and_then(|shown| shown.checked_mul(MILLION))
        {
            Some(product) => i128::from(product / rate),
            None => shown * i128::from(MILLION) / i128::from(rate),
        };
        let time = time + 2;
        Duration::from_nanos(u64::try_from(time).unwrap_or(0))
    }

    /// Sets it to this.
    pub(crate) fn show(&mut self, at: At, shown: Duration) {
        let apart = i128::from(nanos(shown)) - i128::from(nanos(self.shows(at)));
        self.offset += i64::try_from(apart).unwrap_or(0);
    }

    /// A server's clock may be set.
    pub(crate) fn step(&mut self, by: i64) {
        self.offset += by;
    }
}
