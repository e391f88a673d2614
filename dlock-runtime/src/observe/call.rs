//! A call, from the moment it asks for a lock to the end of the work under it.

use tokio::time::Instant;
use tracing::Span;

use super::metrics::{self, Counted};
use super::{HOLD_SECONDS, Labels, SectionSpan, WAIT_SECONDS, WAITING, is_observed, outcome};
use crate::clock::Clock;
use crate::error::LockError;
use crate::key::LockKey;
use crate::token::FencingToken;

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
