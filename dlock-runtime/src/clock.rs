//! Which clock a lease is measured by.

use tokio::time::Instant;

/// The monotonic clock of a manager.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// The machine's: a store elsewhere knows nothing of a runtime whose time
    /// a test has paused.
    Real,
    /// The current runtime's, which a test may pause.
    Tokio,
}

impl Clock {
    pub(crate) fn now(self) -> Instant {
        match self {
            Self::Real => Instant::from_std(std::time::Instant::now()),
            Self::Tokio => Instant::now(),
        }
    }
}
