//! How a task comes to the gate, and is turned away.

use std::time::Duration;

use crate::backend::{BackendError, Mode};
use crate::lease::NotHad;
use crate::observe::SectionSpan;

/// How a task comes to the gate.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    /// Does not wait, neither here nor in the store.
    pub(crate) try_only: bool,
    /// Needs a lease that comes from the store, not one that was used before:
    /// it will not be renewed.
    pub(crate) fresh: bool,
    /// What it is asked for.
    pub(crate) section: &'a SectionSpan,
}

/// Why there is no turn.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    Busy,
    Store(BackendError),
}

impl From<NotHad> for Refusal {
    fn from(not_had: NotHad) -> Self {
        Self::Store(not_had.into_error())
    }
}
