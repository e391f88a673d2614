//! What each setting may be. Every duration and number that a user gives is
//! checked here, before it meets a clock or a store that it would overflow.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{BackendError, BackendErrorKind, LockError};
use crate::token::TOKENS_PER_GRANT;

/// The shortest lease, whatever the store: less could not be renewed in time.
/// The attribute refuses a shorter `ttl` when compiling.
pub const MIN_TTL: Duration = Duration::from_millis(10);

/// Longer than any lease or wait should be, and far from where clocks overflow.
/// The attribute refuses more when compiling.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How long a store may take to answer, where nothing else is said.
pub(crate) const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const TIME: [&str; 2] = ["too short", "too long"];
const NUMBER: [&str; 2] = ["too few", "too many"];

/// A setting, what it may be, and what to do where it is not.
#[derive(Clone, Debug)]
pub(crate) struct Setting<T> {
    name: &'static str,
    range: RangeInclusive<T>,
    /// What messages call a value below the range, and a value above it.
    wrong: [&'static str; 2],
    remedy: &'static str,
}

/// The lease, whatever the store; each store may have a narrower range.
pub(crate) const TTL: Setting<Duration> = Setting {
    name: "ttl",
    range: MIN_TTL..=LONGEST,
    wrong: TIME,
    remedy: "give a time from 10ms to ten years",
};

/// The caller's wait. None at all is a `try`.
pub(crate) const TIMEOUT: Setting<Duration> = Setting {
    name: "timeout",
    range: Duration::ZERO..=LONGEST,
    wrong: TIME,
    remedy: "give at most ten years, or none to wait for as long as it takes",
};

/// Below a millisecond no server could answer; the databases count such times
/// in 32 bits of milliseconds.
pub(crate) const REQUEST_TIMEOUT: Setting<Duration> = Setting {
    name: "request_timeout",
    range: MILLISECOND..=DAY,
    wrong: TIME,
    remedy: "give a time from 1ms to 24h",
};

pub(crate) const MAX_HOLD: Setting<Duration> = Setting {
    name: "max_hold",
    range: MILLISECOND..=LONGEST,
    wrong: TIME,
    remedy: "give a time from 1ms to ten years, or none",
};

pub(crate) const MIN_HOLD: Setting<Duration> = Setting {
    name: "min_hold",
    range: Duration::ZERO..=LONGEST,
    wrong: TIME,
    remedy: "give at most ten years",
};

/// How long a body that was done is remembered.
pub(crate) const ONCE: Setting<Duration> = Setting {
    name: "once",
    range: MILLISECOND..=LONGEST,
    wrong: TIME,
    remedy: "give a time from 1ms to ten years",
};

/// Each hand-over has a token of its own, from those that one grant reserves.
pub(crate) const HANDOFF: Setting<u32> = Setting {
    name: "handoff",
    range: 0..=TOKENS_PER_GRANT as u32 - 1,
    wrong: NUMBER,
    remedy: "give at most 63",
};

/// The tokens of all later grants must fit into a signed column of 64 bits, with whatever a store
/// adds to them. This leaves room for that, since a floor is never lowered.
pub(crate) const TOKEN_FLOOR: Setting<u64> = Setting {
    name: "token_floor",
    range: 0..=i64::MAX.unsigned_abs() - (1 << 56),
    wrong: ["too low", "too high"],
    remedy: "give a whole number up to 9151314442816847871: tokens above it have to fit into 64 \
             bits with a sign",
};

/// The protocol has milliseconds in 32 bits.
pub(crate) const SESSION_TIMEOUT: Setting<Duration> = Setting {
    name: "session_timeout",
    range: Duration::from_secs(1)..=DAY,
    wrong: TIME,
    remedy: "give a time from 1s to 24h",
};

/// More connections than any service needs.
pub(crate) const MAX_CONNECTIONS: Setting<u32> = Setting {
    name: "max_connections",
    range: 1..=1_000,
    wrong: NUMBER,
    remedy: "give a number from 1 to 1000",
};

/// More than any master has.
pub(crate) const REPLICAS: Setting<usize> = Setting {
    name: "replicas",
    range: 0..=1_000,
    wrong: NUMBER,
    remedy: "give how many replicas must have a lock, at most 1000",
};

// No `From` makes these errors: the compiler would propose it to users where
// their own conversion is missing.
impl<T: PartialOrd + fmt::Debug> Setting<T> {
    /// Refuses a value that the setting cannot have.
    pub(crate) fn check(&self, value: T) -> Result<(), LockError> {
        self.within(value)
            .map_err(|reason| LockError::config(self.name, reason))
    }

    /// Refuses a value that a backend was given in code.
    pub(crate) fn check_in_backend(&self, value: T) -> Result<(), BackendError> {
        self.within(value).map_err(|reason| {
            BackendError::new(
                BackendErrorKind::Config,
                format!("`{}`: {reason}", self.name),
            )
        })
    }

    /// What is wrong with a value and what to do, for who knows the setting by
    /// another name.
    pub(crate) fn within(&self, value: T) -> Result<(), String> {
        if self.range.contains(&value) {
            return Ok(());
        }
        let wrong = self.wrong[usize::from(value > *self.range.end())];
        Err(format!("{value:?} is {wrong}; {}", self.remedy))
    }
}

impl Setting<u64> {
    /// Reads a number. The error for a text that is not a number does not show the text, which may
    /// be a secret.
    pub(crate) fn read(&self, text: &str) -> Result<u64, String> {
        let number = text.parse().map_err(|_| self.remedy.to_owned())?;
        self.within(number).map(|()| number)
    }
}

/// Refuses times of a lease that contradict each other.
pub(crate) fn check_holds(
    renew: bool,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
) -> Result<(), LockError> {
    max_hold.map(|limit| MAX_HOLD.check(limit)).transpose()?;
    min_hold.map(|least| MIN_HOLD.check(least)).transpose()?;
    if let (false, Some(_)) = (renew, max_hold) {
        return Err(LockError::config(
            "max_hold",
            "it ends the renewals of a lease that `renew = false` never renews; leave one of the \
             two out",
        ));
    }
    match (min_hold, max_hold) {
        (Some(least), Some(limit)) if least > limit => Err(LockError::config(
            "min_hold",
            format!("{least:?} is longer than the max_hold of {limit:?}; make it shorter"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_belong_to_it() {
        let nano = Duration::from_nanos(1);
        for setting in [TTL, TIMEOUT, REQUEST_TIMEOUT, MAX_HOLD, MIN_HOLD] {
            let (least, most) = (*setting.range.start(), *setting.range.end());
            assert!(setting.check(least).is_ok() && setting.check(most).is_ok());
            let mut wrong = vec![(most + nano, "too long"), (Duration::MAX, "too long")];
            wrong.extend(least.checked_sub(nano).map(|below| (below, "too short")));
            for (value, says) in wrong {
                let error = setting.check(value).expect_err("out of range").to_string();
                assert!(
                    error.contains(setting.name)
                        && error.contains(says)
                        && error.contains(&format!("{value:?}")),
                    "{error}"
                );
            }
        }
        assert!(HANDOFF.check(63).is_ok());
        assert!(HANDOFF.check(64).is_err());
    }

    #[test]
    fn holds_that_contradict_each_other_are_refused() {
        let s = |seconds| Some(Duration::from_secs(seconds));
        for (renew, max_hold, min_hold) in [
            (true, None, None),
            (true, s(5), s(5)),
            (true, s(5), None),
            (false, None, s(5)),
        ] {
            assert!(check_holds(renew, max_hold, min_hold).is_ok());
        }
        for (renew, max_hold, min_hold, names) in [
            (false, s(5), None, ["max_hold", "renew = false"]),
            (true, s(5), s(6), ["min_hold", "max_hold of 5s"]),
            (true, s(0), None, ["max_hold", "too short"]),
            (true, None, Some(Duration::MAX), ["min_hold", "too long"]),
        ] {
            let error = check_holds(renew, max_hold, min_hold).expect_err("a contradiction");
            let error = error.to_string();
            assert!(names.iter().all(|name| error.contains(name)), "{error}");
        }
    }
}
