//! What stands where a lock is held: by whom, and since when, if that is said.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// This owner, and since when it has the lock by its own clock, in milliseconds since 1970.
pub(super) fn held(owner: &str, since: Option<u64>) -> String {
    match since {
        Some(since) => format!("{owner};{since}"),
        None => owner.to_owned(),
    }
}

/// What was put together by that.
pub(super) fn held_by(value: &str) -> Option<(&str, Option<u64>)> {
    match value.split_once(';') {
        Some((owner, since)) => Some((owner, Some(since.parse().ok()?))),
        None => Some((value, None)),
    }
}

pub(super) fn time(since: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(since))
}
