//! When something happened, as all processes of one machine see it.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Microseconds of the system's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a monotonic clock");
        let now = Duration::from(now);
        Self(u64::try_from(now.as_micros()).expect("a machine that began this century"))
    }

    pub(crate) const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    pub(crate) const fn micros(self) -> u64 {
        self.0
    }

    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Moment {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}
