//! A body that is to run once.

use std::sync::Arc;
use std::time::Duration;

use super::section::Section;

/// A body, or the work of who has a guard, that is remembered if it is done. Of several
/// inside one lock, the last that ends decides. One that is dropped, cancelled or panics has
/// ended too, and has not done it. Goes before the lock does.
pub(crate) struct OnceBody {
    section: Arc<Section>,
    /// How long it is remembered.
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

    /// It has come to its end, and what was to be done is done or is not.
    pub(crate) fn end(mut self, done: bool) {
        self.done = done;
    }
}

impl Drop for OnceBody {
    fn drop(&mut self) {
        self.section.body_ended(self.done.then_some(self.lasts));
    }
}
