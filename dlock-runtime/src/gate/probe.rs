//! Asking the store whether it is there.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::BackendError;
use crate::lease::Leases;

/// A question to the store that asks for nothing but an answer: those who wait
/// behind others have heard from it before, and would not know of an outage.
#[derive(Debug)]
pub(super) struct Probe {
    begun: Instant,
    answered: watch::Receiver<Option<Answered>>,
}

#[derive(Clone, Debug)]
struct Answered {
    at: Instant,
    answer: Result<(), BackendError>,
}

impl Probe {
    /// Asks about `key`, which it inspects: the cheapest question there is.
    pub(super) fn begin(leases: &Leases, key: &Arc<str>) -> Arc<Self> {
        let (sender, answered) = watch::channel(None);
        let (backend, clock) = (Arc::clone(&leases.backend), leases.executor.clock());
        let key = Arc::clone(key);
        leases.executor.keeper_runtime().spawn(async move {
            let answer = backend.inspect(&key).await.map(drop);
            let at = clock.now();
            sender.send_replace(Some(Answered { at, answer }));
        });
        Arc::new(Self {
            begun: clock.now(),
            answered,
        })
    }

    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    pub(super) fn is_answered(&self) -> bool {
        // Its task may have ended with its runtime.
        self.answered.borrow().is_some() || self.answered.has_changed().is_err()
    }

    /// What was answered at `since` or later.
    pub(super) fn answered_since(&self, since: Instant) -> Option<Result<(), BackendError>> {
        let answered = self.answered.borrow().clone();
        answered
            .filter(|answered| answered.at >= since)
            .map(|answered| answered.answer)
    }
}
