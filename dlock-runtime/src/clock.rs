//! Which clock measures a lease; and timers and random numbers: those of tokio and the machine, or
//! those of the simulation that runs on this thread.

use std::time::Instant as StdInstant;

use tokio::time::Instant;

#[cfg(feature = "simulation")]
pub(crate) use crate::simulation::{Sleep, chance, sleep, sleep_until};
#[cfg(not(feature = "simulation"))]
pub(crate) use tokio::time::{Sleep, sleep, sleep_until};

/// The monotonic clock of a manager.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The machine's: a store on another machine does not share the paused time of a test's
    /// runtime.
    Real,
    /// The current runtime's, which a test may pause.
    Tokio,
    /// That of the simulated process that runs on this thread.
    #[cfg(feature = "simulation")]
    Simulated,
}

impl Clock {
    pub(crate) fn now(self) -> Instant {
        match self {
            Self::Real => Instant::from_std(StdInstant::now()),
            Self::Tokio => Instant::now(),
            #[cfg(feature = "simulation")]
            Self::Simulated => crate::simulation::now(),
        }
    }
}

/// Whether the clock of the current runtime is the machine's. It is not while a test has paused it,
/// nor ever after in that runtime. `before` must be a moment ago.
pub(crate) fn time_is_real(before: StdInstant) -> bool {
    let shown = Instant::now().into_std();
    before <= shown && shown <= StdInstant::now()
}

/// A random number from 0 up to, but not including, 1.
#[cfg(not(feature = "simulation"))]
pub(crate) fn chance() -> f64 {
    fastrand::f64()
}
