//! A body that has to run once.

use std::sync::Arc;
use std::time::Duration;

use super::section::Section;

/// A body, or the work under a guard, that is remembered once it is done. Of several bodies inside
/// one lock, the last to end decides. A body that is dropped, cancelled or panics has ended without
/// being done, and so has all inside it if it took the lock. Must be dropped before the lock is
/// released.
pub(crate) struct OnceBody {
    section: Arc<Section>,
    /// How long the body is remembered.
    lasts: Duration,
    done: bool,
}

impl OnceBody {
    pub(crate) fn begin(section: &Arc<Section>, lasts: Duration) -> Self {
        Self {
            section: Arc::clone(section),
            lasts,
            done: false,
        }
    }

    /// The body has come to its end. `done` says whether its work is done.
    pub(crate) fn end(mut self, done: bool) {
        self.done = done;
    }
}

impl Drop for OnceBody {
    fn drop(&mut self) {
        self.section.body_ended(self.done.then_some(self.lasts));
    }
}
