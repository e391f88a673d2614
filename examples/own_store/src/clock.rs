//! The time that all processes of a machine have in common.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds on a clock that nobody sets. Like the clock of the leases, it stands
/// still while the machine sleeps: who held a lock then still holds it.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let time = Duration::try_from(time).unwrap_or_default();
    millis(time)
}

/// What names this start of the machine: the clock begins anew with the next one,
/// and nobody who held a lock has come through.
pub(crate) fn boot() -> io::Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

/// What names this machine: another one has another clock.
pub(crate) fn machine() -> io::Result<String> {
    let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let id = match id.trim() {
        "" => fs::read_to_string("/proc/sys/kernel/hostname")?,
        id => id.to_owned(),
    };
    Ok(id.trim().to_owned())
}

/// The end of what begins now and lasts this long. Rounded up, so that a lease never ends sooner
/// than its holder counts.
pub(crate) fn end(now: u64, lasts: Duration) -> u64 {
    let rounded_up = lasts.saturating_add(Duration::from_nanos(999_999));
    millis(rounded_up).saturating_add(now + 1)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lease_is_too_short() {
        for (lasts, expected) in [(1_000_000, 2), (1_000_001, 3), (1_999_999, 3)] {
            // The clock may stand at nearly the next millisecond.
            assert_eq!(end(0, Duration::from_nanos(lasts)), expected);
        }
    }
}
