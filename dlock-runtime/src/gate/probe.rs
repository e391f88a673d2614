//! Asking the store whether it answers.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::BackendError;
use crate::lease::Leases;

/// A question to the store, for tasks that wait behind others. They ask nothing themselves, and
/// would not notice an outage.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) begun: Instant,
    answered: watch::Receiver<Option<Answered>>,
    /// The answer to the probe before, for tasks that began to wait before this one.
    before: Option<Answered>,
}

/// When the store was asked, and what it answered. A part of a quorum may have answered at once, and
/// the rest much later: so the answer is as old as the question.
type Answered = (Instant, Shown);

/// Whether the store knows of the lock, which usually means that it is held.
type Shown = Result<bool, BackendError>;

impl Probe {
    /// Inspects `key`, which is the cheapest question there is.
    pub(super) fn begin(leases: &Leases, key: &Arc<str>, before: Option<&Self>) -> Self {
        let (sender, answered) = watch::channel(None);
        let (backend, clock) = (Arc::clone(&leases.backend), leases.executor.clock());
        let key = Arc::clone(key);
        let begun = clock.now();
        leases.executor.spawn(async move {
            let answer = backend.inspect(&key).await.map(|lock| lock.is_some());
            sender.send_replace(Some((begun, answer)));
        });
        Self {
            begun,
            answered,
            before: before.and_then(|probe| probe.answered.borrow().clone()),
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        // The probe's task may have ended with its runtime.
        self.answered.borrow().is_some() || self.answered.has_changed().is_err()
    }

    /// The last answer to this probe or the one before, if the store was asked at `since` or later.
    pub(super) fn answered_since(&self, since: Instant) -> Option<Shown> {
        let answered = self.answered.borrow().clone();
        let last = answered.or_else(|| self.before.clone());
        last.and_then(|(asked, answer)| (asked >= since).then_some(answer))
    }
}
