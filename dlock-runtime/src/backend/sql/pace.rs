//! How often a backend does what it does by itself.

use std::time::Duration;

/// How often a process with waiters says that it is alive.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// How often somebody cleans the tables.
pub(super) const CLEAN: Duration = Duration::from_secs(2);

/// How soon a waiter's turn is looked for where no messages come. The pause
/// grows with how long nothing has happened: those who wait for a lock that goes
/// from hand to hand look often, those who wait for a long job seldom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

/// Part of the time that has been waited already.
const PART: u32 = 6;

impl Pace {
    pub(super) fn pause(self, calm: Duration) -> Duration {
        (calm / PART)
            .clamp(self.shortest, self.longest)
            .mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}
