//! A critical section that has its locks.

use tokio::time::Instant;
use tracing::Span;

use super::SectionSpan;
use super::metrics::{self, Counted};
use crate::clock::Clock;

/// A critical section from the grant to the end of its last body. Dropped, it
/// has ended.
#[derive(Debug)]
pub(crate) struct Holding {
    section: SectionSpan,
    /// Known if somebody looks.
    granted: Option<Instant>,
    clock: Clock,
    _counted: Counted,
}

impl Holding {
    pub(super) fn begin(section: SectionSpan, granted: Option<Instant>, clock: Clock) -> Self {
        Self {
            _counted: Counted::holding(section.labels),
            section,
            granted,
            clock,
        }
    }

    pub(crate) fn span(&self) -> &Span {
        self.section.span()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let Some(granted) = self.granted else {
            return;
        };
        let SectionSpan { span, labels } = &self.section;
        let held = self.clock.now().saturating_duration_since(granted);
        if !span.is_disabled() {
            span.record("held", tracing::field::debug(held));
        }
        metrics::held(*labels, held);
    }
}
