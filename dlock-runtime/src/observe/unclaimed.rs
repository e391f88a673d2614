//! A lock that was given to a task which has not come for it.

use super::Labels;
use super::metrics::Counted;

/// Counts as held, though nobody works under it. Dropped, somebody came for it
/// or it was passed on.
#[derive(Debug)]
pub(crate) struct Unclaimed {
    _counted: Counted,
}

impl Unclaimed {
    pub(crate) fn begin(labels: Labels) -> Self {
        Self {
            _counted: Counted::holding(labels),
        }
    }
}
