//! Asking the store whether it is there.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::BackendError;
use crate::lease::Leases;

/// A question to the store by those who wait behind others: these have heard from it
/// before, and would not tell of an outage.
#[derive(Debug)]
pub(super) struct Probe {
    pub(super) begun: Instant,
    answered: watch::Receiver<Option<Answered>>,
    /// By the question before it: who began to wait before this one has that.
    before: Option<Answered>,
}

type Answered = (Instant, Shown);

/// Whether anything is known of the lock there: that it is held, as a rule.
type Shown = Result<bool, BackendError>;

impl Probe {
    /// Asks about `key`, which it inspects: the cheapest question there is.
    pub(super) fn begin(leases: &Leases, key: &Arc<str>, before: Option<&Self>) -> Self {
        let (sender, answered) = watch::channel(None);
        let (backend, clock) = (Arc::clone(&leases.backend), leases.executor.clock());
        let key = Arc::clone(key);
        leases.executor.spawn(async move {
            let answer = backend.inspect(&key).await.map(|lock| lock.is_some());
            sender.send_replace(Some((clock.now(), answer)));
        });
        Self {
            begun: clock.now(),
            answered,
            before: before.and_then(|probe| probe.answered.borrow().clone()),
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        // Its task may have ended with its runtime.
        self.answered.borrow().is_some() || self.answered.has_changed().is_err()
    }

    /// What was answered at `since` or later, to this or the one before.
    pub(super) fn answered_since(&self, since: Instant) -> Option<Shown> {
        let answered = self.answered.borrow().clone();
        let last = answered.or_else(|| self.before.clone());
        last.and_then(|(at, answer)| (at >= since).then_some(answer))
    }
}
