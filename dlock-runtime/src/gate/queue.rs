//! The tasks that wait for one key in this process, in the order they came.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::lead::{Lead, Led, StorePlace};
use super::probe::Probe;
use super::shared_lease::SharedLease;
use super::sweep::Sweep;
use super::ticket::{Entry, Stage, Ticket};
use crate::backend::{Mode, Request};
use crate::lease::{Follower, Lease, Leases, NotHad};
use crate::observe;
use crate::sync::Mutex;
use crate::tables::HashMap;

/// The queues of one gate, each from the task that opens it to the last.
#[derive(Debug)]
pub(super) struct Queues {
    open: Mutex<Open>,
    pub(super) sweep: Arc<Sweep>,
}

#[derive(Debug, Default)]
struct Open {
    queues: HashMap<Name, Arc<Queue>>,
    /// How many queues of one task only there were.
    own: u64,
}

/// What queues are told apart by. Leases of one length may be handed over to each
/// other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    key: Arc<str>,
    ttl: Duration,
    /// Of a queue that nobody else finds; else 0.
    own: u64,
}

/// A queue. The lead of it is with one of its tasks, or on its way to one; or it
/// follows the lease, and passes on when that is lost, or has gone back; or it is
/// loose.
#[derive(Debug)]
pub(super) struct Queue {
    name: Name,
    queues: Arc<Queues>,
    state: Mutex<State>,
    /// The last question whether the store is there.
    pub(super) probe: Mutex<Option<Arc<Probe>>>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of their numbers.
    waiters: VecDeque<Arc<Ticket>>,
    /// How many have come to wait.
    came: u64,
    /// Who was given the lease or the lead last, and may not have come for it, asks
    /// the store, or waits for other keys.
    served: Option<Arc<Ticket>>,
    /// What the store is asked, or was for a place that is kept.
    asked: Option<Request>,
    /// How many had come to wait when it was asked.
    came_before: u64,
    /// The lock as it is held in this process, until the lead passes on.
    held: Option<Arc<Lease>>,
    /// When it was held last.
    was_held: Option<Instant>,
    /// Somebody did not come for what it was given. Those behind may be the
    /// same: the lead goes to the first of them who came when it was called.
    doubtful: bool,
    /// The lead is for the first who comes, with the place in the store's queue
    /// until the next look.
    loose: Option<Option<StorePlace>>,
}

impl Queues {
    pub(super) fn new(leases: &Arc<Leases>) -> Arc<Self> {
        Arc::new_cyclic(|queues: &Weak<Self>| {
            let queues = queues.clone();
            let looks = move |tick| queues.upgrade().is_some_and(|all| all.look(tick));
            Self {
                open: Mutex::default(),
                sweep: Sweep::new(leases, looks),
            }
        })
    }

    /// Opens a queue, or joins the one there is. `None`: the lock is held in this
    /// process, and the task does not wait. One that does not wait asks by itself
    /// where others ask already.
    pub(super) fn join(
        self: &Arc<Self>,
        key: &Arc<str>,
        entry: &Entry<'_>,
    ) -> Option<(Arc<Queue>, Arc<Ticket>)> {
        // Dropped behind the locks. It is of no use to who does not wait.
        let _place;
        let mut open = self.open.lock();
        let mut name = Name {
            key: Arc::clone(key),
            ttl: entry.ttl,
            own: 0,
        };
        let known = open.queues.get(&name).cloned();
        let is_known = known.is_some();
        if let Some(queue) = known.filter(|_| entry.mode == Mode::Write) {
            let mut state = queue.state.lock();
            if let Some(mut loose) = state.loose.take() {
                _place = loose.take_if(|_| entry.try_only);
                let lead = Lead::new(Arc::clone(&queue) as _, loose);
                let ticket = Ticket::new(&self.sweep, entry, 0, Stage::Lead(lead));
                state.doubtful = false;
                state.served = Some(Arc::clone(&ticket));
                drop(state);
                return Some((queue, ticket));
            }
            if !entry.try_only {
                let (ahead, may_be_neglected) = (state.waiters.len(), state.served.is_some());
                state.came += 1;
                let ticket = Ticket::new(&self.sweep, entry, state.came, Stage::Waits);
                state.waiters.push_back(Arc::clone(&ticket));
                drop(state);
                drop(open);
                if may_be_neglected {
                    self.sweep.arm();
                }
                observe::waits_in_process(key, ahead);
                return Some((queue, ticket));
            }
            let is_held = |lease: &Arc<Lease>| lease.returns_since().is_none();
            if state.held.as_ref().is_some_and(is_held) {
                return None;
            }
        }
        if is_known || entry.mode != Mode::Write {
            open.own += 1;
            name.own = open.own;
        }
        let queue = Arc::new(Queue {
            name: name.clone(),
            queues: Arc::clone(self),
            state: Mutex::default(),
            probe: Mutex::default(),
        });
        let lead = Lead::new(Arc::clone(&queue) as _, None);
        let ticket = Ticket::new(&self.sweep, entry, 0, Stage::Lead(lead));
        open.queues.insert(name, Arc::clone(&queue));
        Some((queue, ticket))
    }

    pub(super) fn all(&self) -> Vec<Arc<Queue>> {
        self.open.lock().queues.values().cloned().collect()
    }
}

impl Queue {
    pub(super) fn key(&self) -> &Arc<str> {
        &self.name.key
    }

    pub(super) fn ttl(&self) -> Duration {
        self.name.ttl
    }

    /// The task that leads asks the store.
    pub(super) fn asks(&self, ticket: &Arc<Ticket>, request: Request) {
        let mut state = self.state.lock();
        state.served = Some(Arc::clone(ticket));
        state.asked = Some(request);
        state.came_before = state.came;
    }

    /// The lock is held from now on. Says how many wait for it.
    pub(super) fn holds(&self, lease: &Arc<Lease>) -> usize {
        let mut state = self.state.lock();
        state.held = Some(Arc::clone(lease));
        state.served = None;
        state.asked = None;
        state.waiters.len()
    }

    /// A call of several keys has this lease, and waits for the others.
    pub(super) fn keeps(&self, lease: SharedLease, entry: &Entry<'_>) -> Arc<Ticket> {
        let sweep = &self.queues.sweep;
        let ticket = Ticket::new(sweep, entry, 0, Stage::Lease(lease));
        let before = self.state.lock().served.replace(Arc::clone(&ticket));
        drop(before);
        sweep.arm();
        ticket
    }

    /// The lease under which the lock is held in this process.
    pub(super) fn held(&self) -> Option<Arc<Lease>> {
        self.state.lock().held.clone()
    }

    /// Whether the lock was held in this process at `since` or later.
    pub(super) fn was_held_since(&self, since: Instant) -> bool {
        self.state.lock().was_held.is_some_and(|was| was >= since)
    }

    /// The request of whoever leads; none if nobody has asked.
    pub(super) fn asked(&self) -> Option<Request> {
        self.state.lock().asked.clone()
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// Gives the lease to the next waiter that is still there, if a used one will do
    /// for it.
    pub(super) fn hand_over(&self, lease: SharedLease) -> Result<(), SharedLease> {
        let next = || self.state.lock().next_holder();
        let Some(mut ticket) = next() else {
            return Err(lease);
        };
        let mut given = Stage::Lease(lease.next());
        loop {
            match ticket.give(given) {
                Err(Stage::Lease(lease)) => match next() {
                    Some(other) => (ticket, given) = (other, Stage::Lease(lease)),
                    None => return Err(lease),
                },
                _ => return Ok(()),
            }
        }
    }

    fn next_leader(&self, keeps_place: bool) -> Option<Arc<Ticket>> {
        let now = self.queues.sweep.leases.now();
        let mut state = self.state.lock();
        let _before = state.lead_passes(keeps_place, now);
        let next = match state.doubtful {
            true => state.next_who_comes(),
            false => state.next(),
        };
        drop(state);
        next
    }

    /// Leaves the lead to the first who comes, and calls all.
    fn let_loose(&self, place: Option<StorePlace>) {
        let now = self.queues.sweep.leases.now();
        let before = {
            let mut state = self.state.lock();
            let before = state.lead_passes(place.is_some(), now);
            state.loose = Some(place);
            before
        };
        drop(before);
        self.call_all();
        self.close();
    }

    /// Has all who wait come, if they do. Who has not been polled since does not attend.
    pub(super) fn call_all(&self) {
        let waiters: Vec<_> = self.state.lock().waiters.iter().cloned().collect();
        for waiter in waiters {
            let _gone = waiter.give(Stage::Called);
        }
    }

    /// The lead, if it is loose, for one who waits and is polled now.
    pub(super) fn take_loose(self: &Arc<Self>, ticket: &Arc<Ticket>) {
        let mut state = self.state.lock();
        let Some(place) = state.loose.take() else {
            return;
        };
        state.doubtful = false;
        state.take_out(ticket);
        state.served = Some(Arc::clone(ticket));
        drop(state);
        // Who has the lead gives, and nobody else: it waits still.
        let _given = ticket.give(Stage::Lead(Lead::new(Arc::clone(self) as _, place)));
    }

    /// An outage is everybody's: those who wait would only wait for it again, one
    /// after the other.
    pub(super) fn fail_all(&self, not_had: &NotHad) {
        let waiters = std::mem::take(&mut self.state.lock().waiters);
        fail(waiters, not_had);
    }

    /// What was so when the store was asked is so for those who waited then. Who has come
    /// since asks by itself: it may not be so any more.
    pub(super) fn fail_who_waited(&self, not_had: &NotHad) {
        let waited = {
            let mut state = self.state.lock();
            let before = state.came_before;
            let waited = state.waiters.partition_point(|one| one.number <= before);
            let since = state.waiters.split_off(waited);
            std::mem::replace(&mut state.waiters, since)
        };
        fail(waited, not_had);
    }

    /// A waiter was dropped.
    pub(super) fn left(&self, ticket: &Ticket) {
        let is_loose = {
            let mut state = self.state.lock();
            state.take_out(ticket);
            state.loose.is_some()
        };
        if is_loose {
            self.close();
        }
    }

    /// Nobody leads, and if nobody waits either, nobody finds the queue any more.
    fn close(&self) {
        let mut open = self.queues.open.lock();
        let mut state = self.state.lock();
        if state.loose.is_some() && state.waiters.is_empty() {
            let place = state.loose.take();
            let queue = open.queues.remove(&self.name);
            drop(state);
            drop(open);
            drop((place, queue));
        }
    }

    /// Whoever was served last, and whether others wait behind it. A place that
    /// nobody has come to go on with is given up.
    pub(super) fn look(&self) -> (Option<Arc<Ticket>>, bool) {
        // Dropped behind the lock.
        let _place;
        let mut state = self.state.lock();
        _place = state.loose.as_mut().and_then(Option::take);
        if _place.is_some() {
            state.asked = None;
        }
        (state.served.clone(), !state.waiters.is_empty())
    }

    /// It holds up nobody any more.
    pub(super) fn was_served(&self, ticket: &Arc<Ticket>) {
        let mut state = self.state.lock();
        let _served = state.served.take_if(|one| Arc::ptr_eq(one, ticket));
        drop(state);
    }

    /// Somebody did not come for the lease: nor may those behind.
    pub(super) fn doubt(&self) {
        self.state.lock().doubtful = true;
    }
}

fn fail(waiters: VecDeque<Arc<Ticket>>, not_had: &NotHad) {
    for waiter in waiters {
        let _gone = waiter.give(Stage::Failed(not_had.clone()));
    }
}

impl State {
    /// Takes out a waiter, if it is still among them.
    fn take_out(&mut self, ticket: &Ticket) {
        let found = self
            .waiters
            .binary_search_by_key(&ticket.number, |one| one.number);
        if let Ok(index) = found {
            self.waiters.remove(index);
        }
    }

    /// Nobody leads. Who did, and what it had, are to be dropped behind the lock.
    fn lead_passes(
        &mut self,
        keeps_place: bool,
        now: Instant,
    ) -> (Option<Arc<Ticket>>, Option<Arc<Lease>>) {
        if !keeps_place {
            self.asked = None;
        }
        if self.held.is_some() {
            self.was_held = Some(now);
        }
        (self.served.take(), self.held.take())
    }

    /// The next waiter, which is to be given something.
    fn next(&mut self) -> Option<Arc<Ticket>> {
        let next = self.waiters.pop_front()?;
        self.served = Some(Arc::clone(&next));
        Some(next)
    }

    /// The first waiter that came when all were called, or has come to wait since.
    fn next_who_comes(&mut self) -> Option<Arc<Ticket>> {
        let comes = self.waiters.iter().position(|one| one.attends())?;
        self.doubtful = false;
        let next = self.waiters.remove(comes)?;
        self.served = Some(Arc::clone(&next));
        Some(next)
    }

    /// The next waiter, if a used lease will do for it, and it is not in doubt.
    fn next_holder(&mut self) -> Option<Arc<Ticket>> {
        match self.doubtful || self.waiters.front()?.fresh {
            true => None,
            false => self.next(),
        }
    }
}

impl Led for Queue {
    /// The last one closes the queue.
    fn pass_on(self: Arc<Self>, place: Option<StorePlace>) {
        let place = place.filter(|place| !place.tries);
        let Some(next) = self.next_leader(place.is_some()) else {
            return self.let_loose(place);
        };
        // If it has left meanwhile, what comes back is dropped, and passes on.
        let _back = next.give(Stage::Lead(Lead::new(self, place)));
    }
}

impl Follower for Queue {
    fn goes_on(self: Arc<Self>) {
        self.pass_on(None);
    }
}
