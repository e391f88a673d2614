//! Timers and random numbers: those of tokio and the machine, or those of the simulation that runs
//! on this thread.

#[cfg(feature = "simulation")]
pub(crate) use crate::simulation::{Sleep, chance, sleep, sleep_until};
#[cfg(not(feature = "simulation"))]
pub(crate) use tokio::time::{Sleep, sleep, sleep_until};

/// A random number from 0 up to, but not including, 1.
#[cfg(not(feature = "simulation"))]
pub(crate) fn chance() -> f64 {
    fastrand::f64()
}
