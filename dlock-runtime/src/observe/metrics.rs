//! Numbers for the recorder that the program has installed, through the `metrics` facade. Nothing
//! is stored here: a recorder may be installed late, or for one thread only. A gauge handle is kept
//! as long as the thing it counts, so that a recorder that saw the increase also sees the decrease.

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

/// Every counter, with its own labels.
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

/// Describes the metrics to the recorder.
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
    /// The kinds that this thread has begun at zero. A set for all threads would need a mutex in
    /// every call, and beginning twice is harmless.
    static BEGUN: RefCell<Begun> = RefCell::default();
}

#[derive(Default)]
struct Begun {
    /// The address of the recorder of `kinds`. With another recorder, which was installed late or
    /// for this thread only, the set starts again.
    recorder: usize,
    kinds: HashSet<Kind>,
}

/// The address and length of the template, and the addresses of store and mode. All three are
/// constants of the program. A text that exists twice is begun twice.
type Kind = [usize; 4];

/// Creates every counter that a call of this kind may use, at zero if it is new. After the first
/// call on a thread, this is only a lookup in a set.
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
    // At the end of a thread, its set is gone. A counter that does not exist yet then begins with
    // its first count.
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

/// Increments a counter with its own labels, beside those of every metric.
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

/// One unit of a gauge, removed again on drop.
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
