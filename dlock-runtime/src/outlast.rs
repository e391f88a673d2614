//! Reports that may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reports something to the program's subscriber or recorder, and outlasts its panic. That code is
/// not ours: `tracing_subscriber::fmt` panics if it cannot write to stderr. For what is reported by
/// a task that has others to see to, or in the middle of something that must be finished. The
/// panic hook has said what is wrong.
pub(crate) fn outlast(report: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(report));
}

#[cfg(test)]
pub(crate) mod tests {
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Panics at every event.
    pub(crate) struct Panics;

    impl Subscriber for Panics {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn event(&self, event: &Event<'_>) {
            panic!("{event:?}");
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_report_that_panics_is_outlasted() {
        outlast(|| panic!("as a subscriber would"));
    }
}
