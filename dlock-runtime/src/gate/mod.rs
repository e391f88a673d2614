//! The gate: tasks of this process that want the same key queue here, and one
//! of them speaks to the store.
//!
//! There is a queue for each key and ttl, for writers only: readers do not
//! exclude each other, so each of them asks the store by itself. Whoever finds
//! no queue opens one and *leads* it: the right to speak to the store is its
//! [`Baton`]. What the leader gets is a [`Turn`]: a lease together with the
//! baton. After a body that ended normally the turn may go to the next task in
//! the queue without the store being asked; otherwise the lease goes back and
//! the baton passes on. Dropping either, at any moment, does the same.

mod name;
mod queue;
mod turn;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use name::{Hashed, Name};
use queue::{Delivery, Queue, Waiting};
use tokio::runtime;
pub(crate) use turn::Turn;

use crate::backend::{BackendError, Mode, Progress, Request};
use crate::lease::{Answer, Leases, OwnedLease};
use crate::observe::{self, Section};

/// A request that waits in the store's queue. It belongs to the gate and not
/// to the task that polls it: when that task is dropped, the next one goes on
/// polling, and the place is kept.
struct StorePlace {
    request: Pin<Box<dyn Future<Output = Answer> + Send>>,
    /// Where it was begun. Its timers and connections are of that runtime, and
    /// of no use when that has ended: elsewhere, the place is given up.
    runtime: runtime::Id,
}

/// The gate of one manager.
#[derive(Debug)]
pub(crate) struct Gate {
    leases: Arc<Leases>,
    /// How many times in a row a lease may be handed over.
    handoff: u32,
    /// A queue is here while somebody leads it or has a turn.
    queues: Mutex<Queues>,
    /// Nobody outside can choose keys that fall together.
    hasher: RandomState,
}

type Queues = HashMap<Name, Queue, Hashed>;

/// How a task comes to the gate.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    /// Does not wait, neither here nor in the store.
    pub(crate) try_only: bool,
    /// Needs a lease that comes from the store, not one that was used before:
    /// it will not be renewed.
    pub(crate) fresh: bool,
    /// What it is asked for.
    pub(crate) section: &'a Section,
}

/// Where a caller waits, for when it gives up.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts(Mutex<Place>);

#[derive(Debug, Default)]
enum Place {
    #[default]
    Nowhere,
    InStore(Progress),
    InProcess(Name),
}

impl Whereabouts {
    fn set(&self, place: Place) {
        *self.place() = place;
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        // No code of ours panics while it holds this.
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Why there is no turn.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    Busy,
    Store(BackendError),
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        Self::Store(error)
    }
}

impl Gate {
    pub(crate) fn new(leases: Arc<Leases>, handoff: u32) -> Self {
        Self {
            leases,
            handoff,
            queues: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// Waits for a turn on `key`. May be dropped at any await: the place in
    /// the queue goes to the next task, and a turn that crosses with the drop
    /// is passed on.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        key: Arc<str>,
        entry: &Entry<'_>,
        whereabouts: &Whereabouts,
    ) -> Result<Turn, Refusal> {
        if entry.mode != Mode::Write {
            return Box::pin(self.enter_alone(key, entry, whereabouts)).await;
        }
        let name = Name::new(key, entry.ttl, &self.hasher);
        let baton = {
            let delivery = match self.lead_or_queue(name, entry) {
                Ok(baton) => Delivery::Lead(baton),
                Err(None) => return Err(Refusal::Busy),
                Err(Some(waiting)) => {
                    whereabouts.set(Place::InProcess(waiting.name().clone()));
                    waiting.await
                }
            };
            match delivery {
                Delivery::Turn(turn) => return Ok(turn),
                Delivery::Failed(refusal) => return Err(refusal),
                Delivery::Lead(baton) => baton,
            }
        };
        whereabouts.set(Place::InProcess(baton.name.clone()));
        baton.lead(entry).await
    }

    /// Readers ask the store one by one: each has a lease of its own.
    async fn enter_alone(
        &self,
        key: Arc<str>,
        entry: &Entry<'_>,
        whereabouts: &Whereabouts,
    ) -> Result<Turn, Refusal> {
        let section = entry.section.clone();
        let request = self.request(key, entry.mode, entry.ttl);
        whereabouts.set(Place::InStore(request.progress().clone()));
        let lease = if entry.try_only {
            self.leases
                .try_acquire(request, section)
                .await?
                .ok_or(Refusal::Busy)?
        } else {
            self.leases.acquire(request, section).await?
        };
        Ok(Turn::alone(lease))
    }

    /// Opens the queue, or joins it: `Err(None)` if the caller will not wait.
    fn lead_or_queue(
        self: &Arc<Self>,
        name: Name,
        entry: &Entry<'_>,
    ) -> Result<Baton, Option<Waiting>> {
        let mut queues = self.queues();
        match queues.get_mut(&name) {
            None => {
                queues.insert(name.clone(), Queue::default());
                drop(queues);
                Ok(Baton {
                    gate: Arc::clone(self),
                    name,
                    place: None,
                })
            }
            Some(_) if entry.try_only => Err(None),
            Some(queue) => {
                let ahead = queue.len();
                let ticket = queue.join(entry.fresh);
                drop(queues);
                observe::waits_in_process(name.key(), ahead);
                Err(Some(Waiting::new(Arc::clone(self), name, ticket)))
            }
        }
    }

    fn request(&self, key: Arc<str>, mode: Mode, ttl: Duration) -> Request {
        Request::new(key, mode, ttl).made_at(self.leases.now())
    }

    /// For a caller who gives up after waiting this long: why the store counts
    /// as unavailable, or none if the lock is held by somebody.
    pub(crate) fn outage(
        &self,
        whereabouts: &Whereabouts,
        waited: Duration,
    ) -> Option<BackendError> {
        let now = self.leases.now();
        match &*whereabouts.place() {
            Place::Nowhere => None,
            Place::InStore(progress) => progress.outage(waited, now),
            Place::InProcess(name) => {
                let asked = self.queues().get(name).and_then(Queue::asked).cloned();
                asked.and_then(|progress| progress.outage(waited, now))
            }
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // No code of ours panics while it holds this.
        self.queues
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The right to speak to the store for one queue. Dropped, it goes to the next
/// task in the queue, with the place in the store's queue if there is one; the
/// last one closes the queue.
struct Baton {
    gate: Arc<Gate>,
    name: Name,
    place: Option<StorePlace>,
}

impl Baton {
    /// Asks the store until it grants or refuses.
    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an `async fn` has room for its arguments twice: rust-lang/rust#62958"
    )]
    fn lead(mut self, entry: &Entry<'_>) -> impl Future<Output = Result<Turn, Refusal>> {
        async move {
            let answer = if entry.try_only {
                let request = self.request();
                let section = entry.section.clone();
                Box::pin(self.gate.leases.try_acquire(request, section)).await
            } else {
                self.wait_in_store(entry.section).await.map(Some)
            };
            match answer {
                Ok(Some(lease)) => Ok(self.begin_turns(lease)),
                Ok(None) => Err(Refusal::Busy),
                Err(error) => {
                    let refusal = Refusal::from(error);
                    self.fail_all(&refusal);
                    Err(refusal)
                }
            }
        }
    }

    async fn wait_in_store(&mut self, section: &Section) -> Result<OwnedLease, BackendError> {
        let here = runtime::Handle::current().id();
        self.place.take_if(|place| place.runtime != here);
        let request = self.request();
        if self.place.is_none() {
            let progress = request.progress().clone();
            if let Some(queue) = self.gate.queues().get_mut(&self.name) {
                queue.set_asked(Some(progress));
            }
        }
        let leases = &self.gate.leases;
        let place = self.place.get_or_insert_with(|| {
            let leases = Arc::clone(leases);
            // The place may serve another.
            let section = section.without_span();
            let request = Box::pin(async move { leases.wait(request, &section).await });
            StorePlace {
                request,
                runtime: here,
            }
        });
        let answer = place.request.as_mut().await;
        self.place = None;
        leases.answered(answer, section.clone())
    }

    /// A fresh lease serves those who queue now, up to the limit: whoever
    /// comes later queues behind the other processes that wait in the store.
    fn begin_turns(self, lease: OwnedLease) -> Turn {
        let waiting = self.gate.queues().get_mut(&self.name).map_or(0, |queue| {
            queue.set_asked(None);
            queue.len()
        });
        let handovers = u32::try_from(waiting)
            .unwrap_or(u32::MAX)
            .min(self.gate.handoff);
        Turn::first(lease, handovers, self)
    }

    /// An outage is everybody's: those behind would only wait for it again,
    /// one after the other.
    fn fail_all(&self, refusal: &Refusal) {
        let waiters = self.gate.queues().get_mut(&self.name).map(Queue::take_all);
        for waiter in waiters.into_iter().flatten() {
            waiter.deliver(Delivery::Failed(refusal.clone()));
        }
    }

    fn request(&self) -> Request {
        let key = Arc::clone(self.name.key());
        self.gate.request(key, Mode::Write, self.name.ttl())
    }
}

impl Drop for Baton {
    fn drop(&mut self) {
        let next = {
            let mut queues = self.gate.queues();
            let next = queues.get_mut(&self.name).and_then(Queue::pop);
            if next.is_none() {
                queues.remove(&self.name);
            }
            next
        };
        if let Some(waiter) = next {
            // A waiter that was dropped just now drops what it is given, which
            // brings it here again for the one after.
            waiter.deliver(Delivery::Lead(Self {
                gate: Arc::clone(&self.gate),
                name: self.name.clone(),
                place: self.place.take(),
            }));
        }
    }
}

impl std::fmt::Debug for Baton {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Baton")
            .field("name", &self.name)
            .field("in_store_queue", &self.place.is_some())
            .finish_non_exhaustive()
    }
}
