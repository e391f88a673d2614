//! What a request that waits has heard from the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::BackendError;
use crate::observe;

/// What a request has heard from the store. A caller that gives up asks it
/// whether the lock was held by somebody, or the store was not there.
#[derive(Clone, Debug)]
pub struct Progress {
    begun: Instant,
    /// The store has answered that somebody holds the lock.
    held: Arc<AtomicBool>,
}

impl Progress {
    pub(super) fn begin(begun: Instant) -> Self {
        Self {
            begun,
            held: Arc::default(),
        }
    }

    pub(super) fn held(&self) {
        if !self.held.swap(true, Ordering::Relaxed) {
            observe::held_by_somebody();
        }
    }

    /// Why the store counts as unavailable for a caller who waited this long,
    /// if it does.
    pub(crate) fn outage(&self, waited: Duration, now: Instant) -> Option<BackendError> {
        // If it was asked just now, by somebody who went before the caller,
        // nothing can be said of the store.
        if self.held.load(Ordering::Relaxed)
            || now.saturating_duration_since(self.begun) < waited / 2
        {
            return None;
        }
        Some(BackendError::unavailable(format!(
            "it has not answered within {waited:?}; check that it runs and can be reached"
        )))
    }
}
