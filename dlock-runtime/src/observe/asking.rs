//! A call that has asked for a lock and has no answer yet.

use tokio::time::Instant;

use super::metrics::{self, Counted};
use super::{Holding, Labels, SectionSpan, is_observed, outcome};
use crate::clock::Clock;
use crate::error::LockError;
use crate::key::LockKey;
use crate::token::FencingToken;

/// A call that has asked for a lock. It ends with the answer; dropped, the
/// caller went away before there was one.
#[derive(Debug)]
pub(crate) struct Asking {
    section: SectionSpan,
    /// Known if somebody looks.
    begun: Option<Instant>,
    clock: Clock,
    /// Until there is an answer.
    waiting: Option<Counted>,
}

impl Asking {
    pub(crate) fn begin(labels: Labels, key: &LockKey, clock: Clock) -> Self {
        Self {
            section: SectionSpan::begin(labels, key),
            begun: is_observed().then(|| clock.now()),
            clock,
            waiting: Some(Counted::waiting(labels)),
        }
    }

    pub(crate) fn section(&self) -> &SectionSpan {
        &self.section
    }

    /// The lock was had.
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
            metrics::waited(*labels, waited);
        }
        let waited = times.map(|(_, waited)| tracing::field::debug(waited));
        tracing::debug!(target: "dlock::grant", parent: span, waited, %token, "granted");
        self.answered("granted");
        Holding::begin(self.section.clone(), times.map(|(now, _)| now), self.clock)
    }

    /// The lock was not had.
    pub(crate) fn refused(mut self, error: &LockError) {
        let outcome = outcome(error);
        tracing::debug!(
            target: "dlock::refuse", parent: &self.section.span, outcome, %error, "not had"
        );
        self.answered(outcome);
    }

    fn answered(&mut self, outcome: &'static str) {
        self.waiting = None;
        metrics::acquisition(self.section.labels, outcome);
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
