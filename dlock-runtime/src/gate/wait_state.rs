//! Where a caller waits.

use std::sync::{Mutex, MutexGuard};

use tokio::time::Instant;

use super::name::Name;
use crate::backend::Progress;

/// Where a caller waits, for when it gives up. Who never does is not asked.
#[derive(Debug)]
pub(crate) struct WaitState(Option<Mutex<WaitsIn>>);

#[derive(Clone, Debug, Default)]
pub(super) enum WaitsIn {
    #[default]
    Nothing,
    Store(Progress),
    Process {
        name: Name,
        since: Instant,
    },
}

impl WaitState {
    pub(crate) fn new(may_give_up: bool) -> Self {
        Self(may_give_up.then(Mutex::default))
    }

    pub(super) fn set(&self, waits_in: impl FnOnce() -> WaitsIn) {
        if let Some(known) = &self.0 {
            *lock(known) = waits_in();
        }
    }

    pub(super) fn get(&self) -> WaitsIn {
        let known = self.0.as_ref();
        known.map_or(WaitsIn::Nothing, |known| lock(known).clone())
    }
}

fn lock(waits_in: &Mutex<WaitsIn>) -> MutexGuard<'_, WaitsIn> {
    // No code of ours panics while it holds this.
    waits_in
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
