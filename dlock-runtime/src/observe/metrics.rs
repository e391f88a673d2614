//! Numbers for whichever recorder the program has installed, through the
//! `metrics` facade. Nothing is kept here: a recorder may be installed late, or
//! for one thread only. What went up in one goes down in the same: a gauge is
//! kept as long as what it counts.

use std::time::Duration;

use metrics::{
    Gauge, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use super::Labels;

const ACQUISITIONS: &str = "dlock_acquisitions_total";
const WAITING: &str = "dlock_waiting";
const HELD: &str = "dlock_held";
const WAIT_SECONDS: &str = "dlock_wait_seconds";
const HOLD_SECONDS: &str = "dlock_hold_seconds";
const HANDOVERS: &str = "dlock_handovers_total";
const RENEWALS: &str = "dlock_renewals_total";
const LOSSES: &str = "dlock_losses_total";
const STORE_ERRORS: &str = "dlock_store_errors_total";

/// The labels of every metric, and those of its own.
macro_rules! labels {
    ($labels:expr $(, $name:literal => $value:expr)*) => {
        [
            metrics::Label::from_static_parts("template", $labels.template),
            metrics::Label::from_static_parts("store", $labels.store),
            $(metrics::Label::from_static_parts($name, $value),)*
        ]
    };
}

/// Tells the recorder what the numbers are.
pub(crate) fn describe() {
    let text = SharedString::const_str;
    describe_counter!(
        ACQUISITIONS,
        text("Locks asked for, by mode and by how that ended")
    );
    describe_gauge!(WAITING, text("Calls that have asked for a lock and wait"));
    describe_gauge!(HELD, text("Critical sections that have their locks"));
    describe_histogram!(
        WAIT_SECONDS,
        Unit::Seconds,
        text("From asking for a lock to having it")
    );
    describe_histogram!(
        HOLD_SECONDS,
        Unit::Seconds,
        text("From having a lock to the end of the work under it")
    );
    describe_counter!(
        HANDOVERS,
        text("Leases that went on to the next task of the process")
    );
    describe_counter!(RENEWALS, text("Renewals of one lease, by how that ended"));
    describe_counter!(LOSSES, text("Leases that ended before the work under them"));
    describe_counter!(
        STORE_ERRORS,
        text("Requests that the store failed or did not answer, by operation and kind")
    );
}

pub(super) fn acquisition(labels: Labels, outcome: &'static str) {
    let mode = labels.mode.name();
    let labels = labels!(labels, "mode" => mode, "outcome" => outcome);
    counter!(ACQUISITIONS, labels.iter()).increment(1);
}

/// One in a gauge. Dropped, it is out again.
pub(crate) struct Counted(Gauge);

impl Counted {
    fn into(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }

    pub(super) fn waiting(labels: Labels) -> Self {
        Self::into(gauge!(WAITING, labels!(labels).iter()))
    }

    /// A lock that is held, though it may be that nobody works under it yet.
    pub(crate) fn holding(labels: Labels) -> Self {
        Self::into(gauge!(HELD, labels!(labels).iter()))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counted")
    }
}

pub(super) fn waited(labels: Labels, waited: Duration) {
    histogram!(WAIT_SECONDS, labels!(labels).iter()).record(waited);
}

pub(super) fn held(labels: Labels, held: Duration) {
    histogram!(HOLD_SECONDS, labels!(labels).iter()).record(held);
}

pub(super) fn handover(labels: Labels) {
    counter!(HANDOVERS, labels!(labels).iter()).increment(1);
}

pub(super) fn renewal(labels: Labels, outcome: &'static str) {
    counter!(RENEWALS, labels!(labels, "outcome" => outcome).iter()).increment(1);
}

pub(super) fn loss(labels: Labels, reason: &'static str) {
    counter!(LOSSES, labels!(labels, "reason" => reason).iter()).increment(1);
}

pub(super) fn store_error(labels: Labels, operation: &'static str, kind: &'static str) {
    let labels = labels!(labels, "operation" => operation, "kind" => kind);
    counter!(STORE_ERRORS, labels.iter()).increment(1);
}
