//! A call, from the moment it asks for a lock to the end of the work under it.

use std::fmt::Display;

use tokio::time::Instant;
use tracing::Span;

use super::metrics::{self, Counted};
use super::{
    HANDOVERS, HOLD_SECONDS, LOSSES, Labels, RENEWALS, WAIT_SECONDS, WAITING, is_observed, outcome,
};
use crate::backend::Owner;
use crate::clock::Clock;
use crate::error::{LockError, LossReason};
use crate::key::{LockKey, Shown};
use crate::outlast::outlast;
use crate::token::FencingToken;

/// One critical section in spans and metrics, from the call that asks for it to the answer to its
/// release.
#[derive(Clone, Debug)]
pub(crate) struct SectionSpan {
    span: Span,
    labels: Labels,
}

impl SectionSpan {
    fn begin(labels: Labels, key: &LockKey) -> Self {
        let span = tracing::info_span!(
            target: "dlock",
            "lock",
            %key,
            template = labels.template,
            mode = labels.mode.name(),
            store = labels.store,
            waited = tracing::field::Empty,
            token = tracing::field::Empty,
            held = tracing::field::Empty,
        );
        Self { span, labels }
    }

    /// For a lease that serves no critical section, or none any more.
    pub(crate) fn of_nobody(labels: Labels) -> Self {
        let span = Span::none();
        Self { span, labels }
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Runs `what` inside the span.
    pub(crate) fn enter<R>(&self, what: impl FnOnce() -> R) -> R {
        self.span.in_scope(what)
    }

    pub(crate) fn labels(&self) -> Labels {
        self.labels
    }

    /// A lease was handed over to the next task of this process.
    pub(crate) fn handed_over(&self, key: &str, token: FencingToken) {
        outlast(|| {
            tracing::debug!(
                target: "dlock::handover", parent: &self.span,
                key = %Shown(key), %token, "handed over to the next task of this process"
            );
        });
        outlast(|| metrics::count(HANDOVERS, self.labels, &[]));
    }

    /// A renewal has ended: `renewed`, `gone`, or `failed`. A failed one is retried until the lease
    /// ends.
    pub(crate) fn renewal(&self, key: &str, outcome: &'static str) {
        outlast(|| {
            tracing::trace!(target: "dlock::renewal", parent: &self.span, key = %Shown(key), outcome, "renewal");
        });
        outlast(|| metrics::count(RENEWALS, self.labels, &[("outcome", outcome)]));
    }

    pub(crate) fn lost(&self, key: &str, owner: Owner, reason: LossReason) {
        outlast(|| {
            tracing::warn!(
                target: "dlock::loss", parent: &self.span, key = %Shown(key), %owner, %reason, "lease lost"
            );
        });
        outlast(|| metrics::count(LOSSES, self.labels, &[("reason", reason.name())]));
    }

    pub(crate) fn released(&self, key: &str) {
        tracing::debug!(target: "dlock::release", parent: &self.span, key = %Shown(key), "released");
    }

    /// The store says that a lease that we thought was held was not ours.
    pub(crate) fn was_gone(&self, key: &str, owner: Owner) {
        outlast(|| {
            tracing::warn!(
                target: "dlock::release", parent: &self.span, key = %Shown(key), %owner,
                "the lock was gone when its body ended; the work may overlap with another's"
            );
        });
        let own = [("reason", LossReason::Gone.name())];
        outlast(|| metrics::count(LOSSES, self.labels, &own));
    }

    /// A release that the store did not take is retried.
    pub(crate) fn release_failed(&self, key: &str, error: &dyn Display) {
        outlast(|| {
            tracing::warn!(
                target: "dlock::release", parent: &self.span, key = %Shown(key), %error,
                "the store did not take the lock back yet; trying again in the background"
            );
        });
    }

    /// A release that the store did not take is not retried any more.
    pub(crate) fn release_given_up(&self, key: &str, owner: Owner, error: &dyn Display) {
        outlast(|| {
            tracing::warn!(
                target: "dlock::release", parent: &self.span, key = %Shown(key), %owner, %error,
                "release failed; the lock stays until its ttl has passed"
            );
        });
    }

    /// The work was done, but the store does not remember it, so it may be done again.
    pub(crate) fn not_remembered(&self, key: &str) {
        outlast(|| {
            tracing::warn!(
                target: "dlock::release", parent: &self.span, key = %Shown(key),
                "what was done could not be remembered, as `once` asks, before its lease ended; it may \
                 be done once more"
            );
        });
    }

    /// The store was not told when a lock under `min_hold` ends.
    pub(crate) fn min_hold_not_confirmed(&self, key: &str) {
        outlast(|| {
            tracing::warn!(
                target: "dlock::release", parent: &self.span, key = %Shown(key),
                "the store was not told when min_hold ends: the lock may be free before, when its \
                 ttl is over"
            );
        });
    }
}

/// A call that has asked for a lock, until it has its answer. If dropped before that, the caller
/// went away.
#[derive(Debug)]
pub(crate) struct Asking {
    section: SectionSpan,
    /// Present if anybody observes the times.
    begun: Option<Instant>,
    clock: Clock,
    /// Present until there is an answer.
    waiting: Option<Counted>,
}

impl Asking {
    pub(crate) fn begin(labels: Labels, key: &LockKey, clock: Clock) -> Self {
        Self {
            section: SectionSpan::begin(labels, key),
            begun: is_observed().then(|| clock.now()),
            clock,
            waiting: Some(Counted::one(WAITING, labels)),
        }
    }

    pub(crate) fn section(&self) -> &SectionSpan {
        &self.section
    }

    /// The lock was granted.
    pub(crate) fn granted(mut self, token: FencingToken) -> Holding {
        let SectionSpan { span, labels } = &self.section;
        let times = self.begun.map(|begun| {
            let now = self.clock.now();
            (now, now.saturating_duration_since(begun))
        });
        if let Some((_, waited)) = times {
            if !span.is_disabled() {
                span.record("waited", tracing::field::debug(waited));
                span.record("token", tracing::field::display(token));
            }
            metrics::record(WAIT_SECONDS, *labels, waited);
        }
        let waited = times.map(|(_, waited)| tracing::field::debug(waited));
        tracing::debug!(target: "dlock::grant", parent: span, waited, %token, "granted");
        self.answered("granted");
        Holding {
            section: self.section.clone(),
            granted: times.map(|(now, _)| now),
            clock: self.clock,
            _counted: self.section.labels.holding(),
        }
    }

    /// The lock was not granted.
    pub(crate) fn refused(mut self, error: &LockError) {
        let outcome = outcome(error);
        tracing::debug!(
            target: "dlock::refuse", parent: &self.section.span, outcome, %error, "not had"
        );
        self.answered(outcome);
    }

    fn answered(&mut self, outcome: &'static str) {
        self.waiting = None;
        self.section.labels.answered(outcome);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if self.waiting.is_some() {
            tracing::debug!(
                target: "dlock::refuse", parent: &self.section.span,
                outcome = "cancelled", "the caller went away before it had the lock"
            );
            self.answered("cancelled");
        }
    }
}

/// A critical section from the grant to the end of its last body, which drops this.
#[derive(Debug)]
pub(crate) struct Holding {
    section: SectionSpan,
    /// Present if anybody observes the times.
    granted: Option<Instant>,
    clock: Clock,
    _counted: Counted,
}

impl Holding {
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
        metrics::record(HOLD_SECONDS, *labels, held);
    }
}
