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

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
