//! Numbers for whichever recorder the program has installed, through the
//! `metrics` facade. Nothing is kept here: a recorder may be installed late, or
//! for one thread only. What went up in one goes down in the same: a gauge is
//! kept as long as what it counts.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ptr;
use std::time::Duration;

use metrics::{
    Gauge, Label, SharedString, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram, with_recorder,
};

use super::{
    ACQUISITIONS, HANDOVERS, HELD, HOLD_SECONDS, LOSSES, Labels, RENEWALS, STORE_ERRORS,
    WAIT_SECONDS, WAITING,
};

/// A label, with all its values.
type Values = (&'static str, &'static [&'static str]);

/// Every counter, with the labels of its own.
const COUNTERS: [(&str, &[Values]); 5] = [
    (
        ACQUISITIONS,
        &[
            (MODE, &["read", "write", "permits"]),
            (
                "outcome",
                &[
                    "granted",
                    "reentered",
                    "busy",
                    "done",
                    "taken_out",
                    "timeout",
                    "unavailable",
                    "cancelled",
                    "would_deadlock",
                    "shut_down",
                    "invalid",
                ],
            ),
        ],
    ),
    (HANDOVERS, &[]),
    (RENEWALS, &[("outcome", &["renewed", "failed", "gone"])]),
    (
        LOSSES,
        &[("reason", &["gone", "overran", "max_hold", "expired"])],
    ),
    (
        STORE_ERRORS,
        &[
            ("operation", &["acquire", "renew", "release"]),
            ("kind", &["unavailable", "config", "unsupported"]),
        ],
    ),
];

const MODE: &str = "mode";

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

thread_local! {
    /// What this thread has begun at zero. One for all threads would be a lock that every
    /// call takes; and to begin twice changes nothing.
    static BEGUN: RefCell<Begun> = RefCell::default();
}

#[derive(Default)]
struct Begun {
    /// The address of the recorder that was told. Another one begins anew: one that was
    /// installed late, or for this thread only.
    recorder: usize,
    kinds: HashSet<Kind>,
}

/// Template, by where it is and how long, store and mode: all three are part of the
/// program, and what that has twice is begun twice.
type Kind = [usize; 4];

/// Every counter that a call of this kind may count in is there, at zero if it is new.
/// After the first call of a thread, that is one look into a set.
pub(super) fn begin_at_zero(labels: Labels) {
    let Labels {
        template,
        store,
        mode,
    } = labels;
    let recorder = with_recorder(|recorder| ptr::from_ref(recorder).cast::<()>().addr());
    let [at, of, by] = [template, store, mode.name()].map(|text| text.as_ptr().addr());
    let kind = [at, template.len(), of, by];
    let is_new = BEGUN.try_with(|begun| {
        let mut begun = begun.borrow_mut();
        if begun.recorder != recorder {
            begun.recorder = recorder;
            begun.kinds.clear();
        }
        begun.kinds.insert(kind)
    });
    // A thread that is at its end has begun what it needs, or nobody has: then a
    // counter begins with what it counts, as it would otherwise.
    if is_new == Ok(true) {
        all_at_zero(labels);
    }
}

fn all_at_zero(labels: Labels) {
    for (name, own) in COUNTERS {
        // Every combination of the values of its labels.
        let mut series = vec![Vec::new()];
        for &(label, values) in own {
            let mut values = values.to_vec();
            values.retain(|&value| label != MODE || value == labels.mode.name());
            let with = |series: &Vec<_>| {
                let series = series.clone();
                let one_more = move |value| [&series[..], &[(label, value)]].concat();
                values.clone().into_iter().map(one_more)
            };
            series = series.iter().flat_map(with).collect();
        }
        for own in series {
            counter!(name, all(labels, &own)).increment(0);
        }
    }
}

fn begins_at_zero(name: &str, own: &[(&str, &str)]) -> bool {
    let is_listed = |labels: &[Values]| {
        let listed = |((label, values), own): (&Values, &(&str, &str))| {
            *label == own.0 && values.contains(&own.1)
        };
        labels.len() == own.len() && labels.iter().zip(own).all(listed)
    };
    COUNTERS
        .iter()
        .any(|(of, labels)| *of == name && is_listed(labels))
}

/// Counts one more in a counter, which has labels of its own beside those of every
/// metric.
pub(super) fn count(name: &'static str, labels: Labels, own: &[(&'static str, &'static str)]) {
    debug_assert!(begins_at_zero(name, own), "{name} {own:?}");
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
