//! Whether the store is there, for callers who give up.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Gate;
use super::probe::Probe;
use super::queue::{Holding, Queue};
use crate::backend::{BackendError, Progress};
use crate::sync::Mutex;

/// Where a caller waits, and since when, for when it gives up. Who never does is not
/// asked.
#[derive(Debug)]
pub(crate) struct WaitState(Option<Mutex<Option<Waits>>>);

type Waits = (Arc<Queue>, Instant);

impl WaitState {
    pub(crate) fn new(may_give_up: bool) -> Self {
        Self(may_give_up.then(Mutex::default))
    }

    pub(super) fn is_asked(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn set(&self, queue: &Arc<Queue>, since: Instant) {
        if let Some(known) = &self.0 {
            let waits = Some((Arc::clone(queue), since));
            let before = std::mem::replace(&mut *known.lock(), waits);
            drop(before);
        }
    }

    fn get(&self) -> Option<Waits> {
        self.0.as_ref()?.lock().clone()
    }
}

impl Gate {
    /// Half of a caller's time is over. If it waits for a lock that is on its way back,
    /// or behind somebody who was told before that the lock is held, nothing is known
    /// of the store now: it has the other half to answer.
    pub(crate) fn make_sure_of_the_store(&self, wait_state: &WaitState) {
        let Some((queue, since)) = wait_state.get() else {
            return;
        };
        let is_unknown = match queue.holding() {
            Holding::Held => false,
            Holding::Returning(_) => true,
            Holding::Nobody => queue
                .progress()
                .is_some_and(|progress| progress.begun() < since && !progress.heard_since(since)),
        };
        if is_unknown {
            queue.probe(|| Probe::begin(&self.leases, queue.key()));
        }
    }

    /// For a caller who gives up after waiting this long: why the store counts
    /// as unavailable, or none if the lock is held by somebody.
    pub(crate) fn outage(&self, wait_state: &WaitState, waited: Duration) -> Option<BackendError> {
        let now = self.leases.now();
        let (queue, since) = wait_state.get()?;
        match queue.holding() {
            Holding::Held => return None,
            Holding::Returning(asked) => {
                return Progress::silence(asked.max(since), waited, now);
            }
            Holding::Nobody => {}
        }
        let progress = queue.progress()?;
        if progress.heard_since(since) {
            return None;
        }
        let probe = queue.last_probe();
        let answered = probe.as_ref().and_then(|probe| probe.answered_since(since));
        if let Some(answer) = answered {
            return answer.err();
        }
        // Before the request that is on its way now, another may have failed.
        let probed = probe.filter(|probe| probe.begun() >= since && !probe.is_answered());
        let of_probe = probed.and_then(|probe| Progress::silence(probe.begun(), waited, now));
        of_probe.or_else(|| progress.outage(since, waited, now))
    }
}
