//! Whether the store is there: for callers who give up after waiting behind
//! others, and for those who only wanted an answer.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::queue::Holding;
use super::{Gate, Name};
use crate::backend::{BackendError, Progress};

/// Where a caller waits, for when it gives up. Who never does is not asked.
#[derive(Debug)]
pub(crate) struct Whereabouts(Option<Mutex<Place>>);

#[derive(Clone, Debug, Default)]
pub(super) enum Place {
    #[default]
    Nowhere,
    InStore(Progress),
    InProcess {
        name: Name,
        since: Instant,
    },
}

impl Whereabouts {
    pub(crate) fn new(may_give_up: bool) -> Self {
        Self(may_give_up.then(Mutex::default))
    }

    pub(super) fn set(&self, place: impl FnOnce() -> Place) {
        if let Some(known) = &self.0 {
            *lock(known) = place();
        }
    }

    fn place(&self) -> Place {
        let known = self.0.as_ref();
        known.map_or(Place::Nowhere, |known| lock(known).clone())
    }
}

fn lock(place: &Mutex<Place>) -> MutexGuard<'_, Place> {
    // No code of ours panics while it holds this.
    place
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A question to the store that asks for nothing but an answer: those who wait
/// behind others have heard from it before, and would not know of an outage.
#[derive(Debug)]
pub(super) struct Probe(watch::Receiver<Option<Answered>>);

#[derive(Clone, Debug)]
struct Answered {
    at: Instant,
    answer: Result<(), BackendError>,
}

impl Probe {
    fn is_answered(&self) -> bool {
        // Its task may have ended with its runtime.
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }

    /// What was answered at `since` or later.
    fn answered_since(&self, since: Instant) -> Option<Result<(), BackendError>> {
        let answered = self.0.borrow().clone();
        answered
            .filter(|answered| answered.at >= since)
            .map(|answered| answered.answer)
    }

    pub(super) async fn answer(&self) -> Result<(), BackendError> {
        let mut answered = self.0.clone();
        match answered.wait_for(Option::is_some).await {
            Ok(answered) => answered
                .as_ref()
                .map_or(Ok(()), |answered| answered.answer.clone()),
            Err(_) => Err(BackendError::unavailable(
                "the runtime that asked whether it answers has ended",
            )),
        }
    }
}

impl Gate {
    /// Asks the store whether it is there, for all who wait for `name`; or
    /// shares the question that is on its way. `None` if nobody waits there.
    pub(super) fn probe(&self, name: &Name) -> Option<Arc<Probe>> {
        let (sender, receiver) = watch::channel(None);
        let probe = Arc::new(Probe(receiver));
        {
            let mut queues = self.queues();
            let known = queues.get_mut(name)?.probe();
            if let Some(known) = known
                && !known.is_answered()
            {
                return Some(Arc::clone(known));
            }
            *known = Some(Arc::clone(&probe));
        }
        let backend = Arc::clone(self.leases.backend());
        let (key, clock) = (Arc::clone(name.key()), self.leases.executor().clock());
        let runtime = self.leases.executor().keeper_runtime();
        runtime.spawn(async move {
            let answer = backend.inspect(&key).await.map(drop);
            let at = clock.now();
            sender.send_replace(Some(Answered { at, answer }));
        });
        Some(probe)
    }

    /// Half of a caller's time is over. If it waits behind somebody who was
    /// told before that the lock is held, nothing is known of the store now: it
    /// has the other half to answer.
    pub(crate) fn make_sure_of_the_store(&self, whereabouts: &Whereabouts) {
        let place = whereabouts.place();
        if let Place::InProcess { name, since } = place
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
    pub(crate) fn outage(
        &self,
        whereabouts: &Whereabouts,
        waited: Duration,
    ) -> Option<BackendError> {
        let now = self.leases.now();
        let place = whereabouts.place();
        match place {
            Place::Nowhere => None,
            Place::InStore(progress) => progress.outage(progress.begun(), waited, now),
            Place::InProcess { name, since } => {
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
