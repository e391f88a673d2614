//! How locks are observed from outside: a span for each critical section, events for what happens
//! to it, and metrics under the feature `metrics`.
//!
//! Names, levels and labels are documented in `docs/observing.md`; they are part of the public
//! interface. Keys appear only in spans and events: the labels of a metric are of low cardinality.
//!
//! A subscriber or recorder may panic. What is reported while a call asks for its lock, or gets it,
//! ends that call then. What is reported while it waits, or of a lease later, by whoever has others
//! to see to, is [outlasted](outlast).

mod call;
#[cfg_attr(not(feature = "metrics"), path = "no_metrics.rs")]
mod metrics;

use std::fmt::Display;

use tracing::level_filters::LevelFilter;

pub(crate) use call::{Asking, Holding, SectionSpan};
pub(crate) use metrics::{Counted, describe};

use crate::backend::{BackendError, BackendErrorKind, Mode};
use crate::error::{LockError, LossReason};
use crate::key::Shown;
use crate::outlast::outlast;

const ACQUISITIONS: &str = "dlock_acquisitions_total";
const WAITING: &str = "dlock_waiting";
const HELD: &str = "dlock_held";
const WAIT_SECONDS: &str = "dlock_wait_seconds";
const HOLD_SECONDS: &str = "dlock_hold_seconds";
const HANDOVERS: &str = "dlock_handovers_total";
const RENEWALS: &str = "dlock_renewals_total";
const LOSSES: &str = "dlock_losses_total";
const STORE_ERRORS: &str = "dlock_store_errors_total";

/// Whether anybody uses times. Reading the clock is expensive compared to the rest of a critical
/// section without I/O.
fn is_observed() -> bool {
    cfg!(feature = "metrics") || LevelFilter::current() != LevelFilter::OFF
}

/// What distinguishes the locks of one kind from others. All but the store is known at compile
/// time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels {
    pub(crate) template: &'static str,
    pub(crate) store: &'static str,
    pub(crate) mode: Mode,
}

impl Labels {
    /// The labels of a call, to be made before anything of it is counted. The first call of its
    /// kind creates its counters at zero, so that an increase from zero to one can be seen.
    pub(crate) fn of_call(template: &'static str, store: &'static str, mode: Mode) -> Self {
        let labels = Self {
            template,
            store,
            mode,
        };
        metrics::begin_at_zero(labels);
        labels
    }

    /// Counts a lock that is held, even if nobody works under it yet.
    pub(crate) fn holding(self) -> Counted {
        Counted::one(HELD, self)
    }

    /// Counts a call that has its answer.
    fn answered(self, outcome: &'static str) {
        let own = [("mode", self.mode.name()), ("outcome", outcome)];
        metrics::count(ACQUISITIONS, self, &own);
    }

    /// Counts a re-entry, which is not a critical section of its own.
    pub(crate) fn reentered(self) {
        self.answered("reentered");
    }

    /// Reports a call that was refused before it had a span of its own, in the span around it.
    pub(crate) fn refused(self, error: &LockError) {
        let outcome = outcome(error);
        tracing::debug!(target: "dlock::refuse", outcome, %error, "not had");
        self.answered(outcome);
    }

    /// Counts a failure of the store to `acquire`, `renew` or `release`.
    pub(crate) fn store_error(self, operation: &'static str, error: &BackendError) {
        let kind = match error.kind() {
            BackendErrorKind::Unavailable => "unavailable",
            BackendErrorKind::Config => "config",
            BackendErrorKind::Unsupported => "unsupported",
            BackendErrorKind::Done => "done",
            BackendErrorKind::TakenOut => "taken_out",
        };
        let own = [("operation", operation), ("kind", kind)];
        outlast(|| metrics::count(STORE_ERRORS, self, &own));
    }
}

/// The renewals of all leases fail, or work again. Logged once, not for every lease and attempt.
pub(crate) fn renewals_failing(error: Option<&dyn Display>) {
    outlast(|| match error {
        Some(error) => tracing::warn!(
            target: "dlock::renewal", %error,
            "renewal failed; trying again until the leases end"
        ),
        None => tracing::info!(target: "dlock::renewal", "renewal works again"),
    });
}

/// A task queues behind others of its own process.
pub(crate) fn waits_in_process(key: &str, ahead: usize) {
    outlast(|| {
        tracing::debug!(
            target: "dlock::wait", key = %Shown(key), ahead,
            "waits behind other tasks of this process"
        );
    });
}

/// A task was woken, usually because its turn had come, and was not polled.
pub(crate) fn not_polled(key: &str) {
    outlast(|| {
        tracing::warn!(
            target: "dlock::handover", key = %Shown(key),
            "a call that waits for the lock was woken and not polled for three seconds; others go \
             before it. Await it or spawn it, and do not leave it in an arm of a `select!`; or its \
             runtime was blocked for as long: block it for less time"
        );
    });
}

/// The store has answered a request that somebody holds the lock.
pub(crate) fn held_by_somebody() {
    outlast(|| tracing::debug!(target: "dlock::wait", "somebody holds the lock"));
}

fn outcome(error: &LockError) -> &'static str {
    match error {
        LockError::Busy { .. } => "busy",
        LockError::Done { .. } => "done",
        LockError::TakenOut { .. } => "taken_out",
        LockError::Timeout { .. } => "timeout",
        LockError::Unavailable { .. } => "unavailable",
        LockError::WouldDeadlock { .. } => "would_deadlock",
        LockError::ShutDown { .. } => "shut_down",
        LockError::Lost { .. }
        | LockError::InvalidKey { .. }
        | LockError::Config { .. }
        | LockError::Unsupported { .. }
        | LockError::NotInitialized { .. }
        | LockError::AlreadyInitialized => "invalid",
    }
}

impl LossReason {
    fn name(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Overran => "overran",
            Self::MaxHold => "max_hold",
            Self::Expired => "expired",
        }
    }
}
