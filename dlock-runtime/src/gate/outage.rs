//! Whether the store is there: for callers who give up after waiting behind
//! others, and for those who only wanted an answer.

use std::sync::Arc;
use std::time::Duration;

use super::name::Name;
use super::probe::Probe;
use super::queue::Holding;
use super::state::Gate;
use super::wait_state::{WaitState, WaitsIn};
use crate::backend::{BackendError, Progress};

impl Gate {
    /// Asks the store whether it is there, for all who wait for `name`; or
    /// shares the question that is on its way. `None` if nobody waits there.
    pub(super) fn probe(&self, name: &Name) -> Option<Arc<Probe>> {
        let mut queues = self.queues();
        let known = queues.get_mut(name)?.probe();
        if let Some(known) = known
            && !known.is_answered()
        {
            return Some(Arc::clone(known));
        }
        let probe = Probe::begin(&self.leases, Arc::clone(name.key()));
        *known = Some(Arc::clone(&probe));
        Some(probe)
    }

    /// Half of a caller's time is over. If it waits behind somebody who was
    /// told before that the lock is held, nothing is known of the store now: it
    /// has the other half to answer.
    pub(crate) fn make_sure_of_the_store(&self, wait_state: &WaitState) {
        if let WaitsIn::Process { name, since } = wait_state.get()
            && self.queues().get(&name).is_some_and(|queue| {
                !queue.is_held()
                    && queue.progress().is_some_and(|progress| {
                        progress.begun() < since && !progress.heard_since(since)
                    })
            })
        {
            self.probe(&name);
        }
    }

    /// For a caller who gives up after waiting this long: why the store counts
    /// as unavailable, or none if the lock is held by somebody.
    pub(crate) fn outage(&self, wait_state: &WaitState, waited: Duration) -> Option<BackendError> {
        let now = self.leases.now();
        match wait_state.get() {
            WaitsIn::Nothing => None,
            WaitsIn::Store(progress) => progress.outage(progress.begun(), waited, now),
            WaitsIn::Process { name, since } => {
                let mut queues = self.queues();
                let queue = queues.get_mut(&name)?;
                match queue.holding() {
                    Holding::Held => return None,
                    Holding::Returning(asked) => {
                        return Progress::silence(asked.max(since), waited, now);
                    }
                    Holding::Nobody => {}
                }
                let probe = queue.probe().clone();
                let progress = queue.progress()?.clone();
                drop(queues);
                if progress.heard_since(since) {
                    return None;
                }
                match probe.and_then(|probe| probe.answered_since(since)) {
                    Some(answer) => answer.err(),
                    None => progress.outage(since, waited, now),
                }
            }
        }
    }
}
