//! Numbers for whichever recorder the program has installed, through the
//! `metrics` facade. Nothing is kept here: a recorder may be installed late, or
//! for one thread only. What went up in one goes down in the same: a gauge is
//! kept as long as what it counts.

use std::time::Duration;

use metrics::{
    Gauge, Label, SharedString, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};

use super::{
    ACQUISITIONS, HANDOVERS, HELD, HOLD_SECONDS, LOSSES, Labels, RENEWALS, STORE_ERRORS,
    WAIT_SECONDS, WAITING,
};

/// Tells the recorder what the numbers are.
pub(crate) fn describe() {
    let text = SharedString::const_str;
    for (name, what) in [
        (
            ACQUISITIONS,
            "Locks asked for, by mode and by how that ended",
        ),
        (
            HANDOVERS,
            "Leases that went on to the next task of the process",
        ),
        (RENEWALS, "Renewals of one lease, by how that ended"),
        (LOSSES, "Leases that ended before the work under them"),
        (
            STORE_ERRORS,
            "Requests that the store failed or did not answer, by operation and kind",
        ),
    ] {
        describe_counter!(name, text(what));
    }
    for (name, what) in [
        (WAITING, "Calls that have asked for a lock and wait"),
        (HELD, "Critical sections that have their locks"),
    ] {
        describe_gauge!(name, text(what));
    }
    for (name, what) in [
        (WAIT_SECONDS, "From asking for a lock to having it"),
        (
            HOLD_SECONDS,
            "From having a lock to the end of the work under it",
        ),
    ] {
        describe_histogram!(name, Unit::Seconds, text(what));
    }
}

/// Counts one more in a counter, which has labels of its own beside those of every
/// metric.
pub(super) fn count(name: &'static str, labels: Labels, own: &[(&'static str, &'static str)]) {
    counter!(name, all(labels, own)).increment(1);
}

pub(super) fn record(name: &'static str, labels: Labels, time: Duration) {
    histogram!(name, all(labels, &[])).record(time);
}

fn all(labels: Labels, own: &[(&'static str, &'static str)]) -> Vec<Label> {
    let of_every = [("template", labels.template), ("store", labels.store)];
    let all = of_every.iter().chain(own);
    all.map(|&(name, value)| Label::from_static_parts(name, value))
        .collect()
}

/// One in a gauge. Dropped, it is out again.
pub(crate) struct Counted(Gauge);

impl Counted {
    pub(super) fn one(name: &'static str, labels: Labels) -> Self {
        let gauge = gauge!(name, all(labels, &[]));
        gauge.increment(1.0);
        Self(gauge)
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
