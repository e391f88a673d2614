//! What the tasks of a process share: its queues, and what no queue knows.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::collected::Others;
use super::leadership::{Leadership, Succession};
use super::name::{Hashed, Name};
use super::place::StorePlace;
use super::queue::Queue;
use super::sweep::Sweep;
use super::ticket::{Delivery, Ticket};
use super::turn::{Successor, Successors};
use crate::backend::{BackendError, Mode, Owner, Request};
use crate::lease::Leases;

/// The gate of one manager.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(super) leases: Arc<Leases>,
    /// How many times in a row a lease may be handed over.
    pub(super) handoff: u32,
    /// A queue is here while somebody leads it or has a turn.
    queues: Mutex<Queues>,
    /// What no queue knows.
    others: Mutex<Others>,
    /// Nobody outside can choose keys that fall together.
    pub(super) hasher: RandomState,
    pub(super) sweep: Arc<Sweep>,
}

type Queues = HashMap<Name, Queue, Hashed>;

impl Gate {
    pub(crate) fn new(leases: Arc<Leases>, handoff: u32) -> Arc<Self> {
        Arc::new_cyclic(|gate: &Weak<Self>| Self {
            leases,
            handoff,
            queues: Mutex::default(),
            others: Mutex::default(),
            hasher: RandomState::new(),
            sweep: Sweep::new(gate.clone()),
        })
    }

    /// A request to the store: all that tasks ask it for begins here.
    pub(super) fn request(
        &self,
        key: Arc<str>,
        mode: Mode,
        ttl: Duration,
    ) -> Result<Request, BackendError> {
        let clock = self.leases.executor().clock();
        Ok(Request::of(Owner::draw()?, clock, key, mode, ttl))
    }

    pub(super) fn leadership(
        self: &Arc<Self>,
        name: &Name,
        place: Option<StorePlace>,
    ) -> Leadership {
        Leadership::new(Arc::clone(self) as Arc<dyn Succession>, name.clone(), place)
    }

    /// The leadership of a queue that has nobody to lead it, for who has come; who
    /// waited leaves the queue with it.
    pub(super) fn take_loose(
        self: &Arc<Self>,
        name: &Name,
        ticket: &Ticket,
        tries: bool,
    ) -> Option<Leadership> {
        let mut queues = self.queues();
        let queue = queues.get_mut(name).filter(|queue| queue.is_loose())?;
        if !ticket.leave() {
            return None;
        }
        if tries {
            queue.left_tries();
        } else {
            queue.left();
        }
        let place = queue.take_loose()?;
        Some(self.leadership(name, place))
    }

    /// A waiter was dropped.
    pub(super) fn left(&self, name: &Name, tries: bool) {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else {
            return;
        };
        if tries {
            queue.left_tries();
        } else {
            queue.left();
        }
        if queue.is_loose() && queue.is_deserted() {
            let queue = queues.remove(name);
            drop(queues);
            // With the place, if there is one.
            drop(queue);
        }
    }

    pub(super) fn queues(&self) -> MutexGuard<'_, Queues> {
        // No code of ours panics while it holds this.
        self.queues
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn others(&self) -> MutexGuard<'_, Others> {
        self.others
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Succession for Gate {
    fn pass_on(self: Arc<Self>, name: &Name, mut place: Option<StorePlace>) {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else {
            return;
        };
        if queue.is_doubtful() {
            drop(queues);
            return self.let_loose(name, place);
        }
        let Some((next, waits)) = queue.next_leader(place.is_some()) else {
            let queue = queues.remove(name);
            drop(queues);
            return drop(queue);
        };
        drop(queues);
        // Who does not wait does not go on waiting for another.
        let kept = if waits { place.take() } else { None };
        drop(place);
        // A waiter that was dropped just now drops what it is given, which
        // brings it here again for the one after.
        next.deliver(Delivery::Lead(self.leadership(name, kept)));
        self.sweep.arm();
    }

    fn let_loose(&self, name: &Name, place: Option<StorePlace>) {
        let mut queues = self.queues();
        let Some(queue) = queues.get_mut(name) else {
            return;
        };
        if queue.is_deserted() {
            let queue = queues.remove(name);
            drop(queues);
            drop((queue, place));
            return;
        }
        let called = queue.let_loose(place);
        drop(queues);
        self.sweep.arm();
        called.into_iter().for_each(std::task::Waker::wake);
    }

    fn lease_returns(&self, name: &Name) {
        let now = self.leases.now();
        if let Some(queue) = self.queues().get_mut(name) {
            queue.returns(now);
        }
    }
}

impl Successors for Gate {
    fn successor(&self, name: &Name) -> Option<Arc<dyn Successor>> {
        let next = self.queues().get_mut(name).and_then(Queue::next_holder)?;
        self.sweep.arm();
        Some(next)
    }

    fn is_waited_for(&self, name: &Name) -> bool {
        self.queues().get(name).is_some_and(|queue| queue.len() > 0)
    }
}
