//! How long the server keeps a lease.
//!
//! Its clock counts whole seconds and is updated once a second, and a lease ends as soon as the
//! clock shows the second in which it would end. So a lease of `n` seconds lasts more than `n -
//! 1` ([issue 307](https://github.com/memcached/memcached/issues/307)), and more than `n - 2` if
//! an update is so late that the clock skips a second. Therefore two seconds are added: the
//! server must not grant the lock again before the holder has stopped relying on its lease.

use std::time::Duration;

use crate::backend::{BackendError, BackendErrorKind};
use crate::duration::seconds_up;

/// The seconds that are added to a lease.
const SLACK: u64 = 2;

/// The longest lease. The server takes a number above 30 days for a date, which would be long
/// past.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600 - SLACK);

/// The seconds of a lease, as they are sent to the server: the longest time that its item lasts.
/// Fails if the server cannot keep it for that long.
pub(super) fn seconds(ttl: Duration) -> Result<u64, BackendError> {
    if ttl > LONGEST {
        return Err(BackendError::new(
            BackendErrorKind::Config,
            format!(
                "a ttl of {ttl:?} is too long for memcached, which keeps nothing for more than \
                 30 days; give a shorter one (or a shorter min_hold)"
            ),
        ));
    }
    Ok(seconds_up(ttl) + SLACK)
}

/// How long a lease lasts if the server says that its item has this many seconds left. `None`:
/// forever.
pub(super) fn lease_left(seconds: i64) -> Option<Duration> {
    let seconds = u64::try_from(seconds).ok()?;
    Some(Duration::from_secs(seconds.saturating_sub(SLACK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up() {
        let seconds = |ttl| seconds(ttl).expect("a ttl");
        assert_eq!(seconds(Duration::from_secs(3)), 5);
        assert_eq!(seconds(Duration::from_millis(3_001)), 6);
        assert_eq!(seconds(Duration::from_nanos(1)), 3);
        assert_eq!(seconds(LONGEST), 2_592_000);
    }

    #[test]
    fn what_would_be_a_date_is_refused() {
        assert!(seconds(LONGEST + Duration::from_nanos(1)).is_err());
        assert!(seconds(Duration::MAX).is_err());
    }

    #[test]
    fn what_is_left_is_shown_without_what_was_added() {
        assert_eq!(lease_left(32), Some(Duration::from_secs(30)));
        assert_eq!(lease_left(1), Some(Duration::ZERO));
        assert_eq!(lease_left(-1), None);
    }
}
