//! Timers and chance: tokio's and the machine's, or those of the
//! simulation that runs on this thread.

#[cfg(feature = "simulation")]
pub(crate) use crate::simulation::{Sleep, chance, sleep, sleep_until};
#[cfg(not(feature = "simulation"))]
pub(crate) use tokio::time::{Sleep, sleep, sleep_until};

/// A number from 0 up to 1.
#[cfg(not(feature = "simulation"))]
pub(crate) fn chance() -> f64 {
    fastrand::f64()
}
