//! What a store keeps for a lock that is held: the owner, and since when it has the lock, if that
//! is known.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(any(feature = "memcached", feature = "zookeeper"))]
use crate::backend::Owner;

/// The text for this owner: `1.1;1767225600000`, or only `1.1`. `since` is when it got the lock, by
/// its own clock, in milliseconds since 1970.
#[cfg(any(feature = "etcd", feature = "memcached", feature = "zookeeper"))]
pub(super) fn held(owner: &str, since: Option<u64>) -> String {
    match since {
        Some(since) => format!("{owner};{since}"),
        None => owner.to_owned(),
    }
}

/// Reads a text that [`held`] has written.
#[cfg(any(feature = "etcd", feature = "memcached", feature = "zookeeper"))]
pub(super) fn held_by(value: &str) -> Option<(&str, Option<u64>)> {
    match value.split_once(';') {
        Some((owner, since)) => Some((owner, Some(since.parse().ok()?))),
        None => Some((value, None)),
    }
}

/// The holder in a value, and since when it has the lock. `None`: another program has written it.
#[cfg(any(feature = "memcached", feature = "zookeeper"))]
pub(super) fn holder(value: &[u8]) -> Option<(&str, Option<u64>)> {
    let (owner, since) = held_by(std::str::from_utf8(value).ok()?)?;
    Owner::is_one(owner).then_some((owner, since))
}

pub(super) fn time(since: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(since))
}
