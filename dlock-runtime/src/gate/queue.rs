//! The tasks of this process that wait for one key, in the order in which they came.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::lead::{Lead, LeadNumber, Led, StorePlace};
use super::leads::State;
use super::probe::Probe;
use super::shared_lease::SharedLease;
use super::sweep::Sweep;
use super::ticket::{Entry, Stage, Ticket};
use crate::backend::{Mode, Request};
use crate::lease::{Follower, Lease, Leases, NotGranted};
use crate::observe;
use crate::sync::Mutex;
use crate::tables::HashMap;

/// The queues of one gate. A queue is here from the task that opens it until the last has left.
#[derive(Debug)]
pub(super) struct Queues {
    open: Mutex<Open>,
    pub(super) sweep: Arc<Sweep>,
}

#[derive(Debug, Default)]
struct Open {
    queues: HashMap<Name, Arc<Queue>>,
    /// The number of the last queue that was made for a single task.
    own: u64,
}

/// What tells queues apart: a lease can only be handed to a task that wants the same key, ttl
/// and mode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    key: Arc<str>,
    ttl: Duration,
    of: Of,
}

/// Which tasks share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    Writers,
    /// Those that want one of this many permits.
    Permits(u32),
    /// A single task: nobody joins it.
    One(u64),
}

/// A queue. Each of its [leads](super::leads::Leads) is with a task or on its way to one, or
/// follows a lease until that is lost or has gone back, or is loose. A task that finds a loose
/// or spare lead takes it; any other waits.
#[derive(Debug)]
pub(super) struct Queue {
    name: Name,
    queues: Arc<Queues>,
    state: Mutex<State>,
    /// The last probe, which asks whether the store answers.
    pub(super) probe: Mutex<Option<Arc<Probe>>>,
}

/// The task that was last given something under a lead.
pub(super) struct Served {
    pub(super) ticket: Arc<Ticket>,
    /// The task's request to the store.
    pub(super) asked: Option<Request>,
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

    /// Joins the queue of this key, or opens one. A `try` never waits here: it gets `None` if this
    /// process holds the lock, and asks the store for itself if other tasks are asking.
    pub(super) fn join(
        self: &Arc<Self>,
        key: &Arc<str>,
        entry: &Entry<'_>,
    ) -> Option<(Arc<Queue>, Arc<Ticket>)> {
        // Dropped after the mutexes are released. A `try` cannot use a place in the store's queue.
        let _place;
        let mut open = self.open.lock();
        let of = match entry.mode {
            Mode::Write => Some(Of::Writers),
            Mode::Permits(most) => Some(Of::Permits(most)),
            Mode::Read => None,
        };
        let name = |of| Name {
            key: Arc::clone(key),
            ttl: entry.ttl,
            of,
        };
        let known = of.and_then(|of| open.queues.get(&name(of)).cloned());
        let is_known = known.is_some();
        if let Some(queue) = known {
            let mut state = queue.state.lock();
            let lead = state.take_loose().or_else(|| {
                let spare = state.leads.another(queue.bodies_at_once())?;
                Some((spare, None))
            });
            if let Some((number, mut place)) = lead {
                _place = place.take_if(|_| entry.try_only);
                let lead = Lead::new(Arc::clone(&queue) as _, number, place);
                // It came after whatever was asked under that lead.
                state.came += 1;
                let ticket = Ticket::new(&self.sweep, entry, state.came, Stage::Lead(lead));
                state.leads.get(number).served = Some(Arc::clone(&ticket));
                drop(state);
                return Some((queue, ticket));
            }
            if !entry.try_only {
                let ahead = state.waiters.len();
                let may_be_neglected = state.leads.may_be_neglected();
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
            // A lease that has run out may not have been looked at yet, after a pause of the process.
            // It is not ended here: what follows it would come back to these mutexes.
            let has_time = |lease: &Lease| self.sweep.leases.now() < lease.deadline();
            let stays = |lease: &Arc<Lease>| lease.returns_since().is_none() && has_time(lease);
            if state.leads.held().is_some_and(stays) {
                return None;
            }
        }
        // A reader, and a `try` beside tasks that ask already, have a queue of their own.
        let of = match of.filter(|_| !is_known) {
            Some(of) => of,
            None => {
                open.own += 1;
                Of::One(open.own)
            }
        };
        let name = name(of);
        let queue = Arc::new(Queue {
            name: name.clone(),
            queues: Arc::clone(self),
            state: Mutex::default(),
            probe: Mutex::default(),
        });
        let lead = Lead::new(Arc::clone(&queue) as _, LeadNumber::default(), None);
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

    /// How many bodies may run at once. There are no more leads than that, so the store is not
    /// asked for more than it can grant.
    fn bodies_at_once(&self) -> u32 {
        match self.name.of {
            Of::Permits(most) => most,
            Of::Writers | Of::One(_) => 1,
        }
    }

    /// Notes the request that the task with this lead has begun.
    pub(super) fn asks(&self, number: LeadNumber, ticket: &Arc<Ticket>, request: Request) {
        let mut state = self.state.lock();
        let came = state.came;
        state.asks_no_more(number);
        let lead = state.leads.get(number);
        lead.served = Some(Arc::clone(ticket));
        lead.asked = Some(request);
        lead.came_before = came;
    }

    /// The lock is held from now on under this lead. Returns how many of the waiting tasks this
    /// lease may serve: the leads share them.
    pub(super) fn holds(&self, number: LeadNumber, lease: &Arc<Lease>) -> usize {
        let mut state = self.state.lock();
        state.leads.holds(number, lease);
        state.waiters.len().div_ceil(state.leads.out())
    }

    /// Keeps this lease for a call that waits for its other keys. The sweep looks at the call, unless
    /// the lease is lost: then nobody waits for it, and the task that has its lead is looked at.
    pub(super) fn keeps(&self, shared: SharedLease, entry: &Entry<'_>) -> Arc<Ticket> {
        let sweep = &self.queues.sweep;
        let (number, lease) = (shared.lead, Arc::clone(shared.guard.lease()));
        let ticket = Ticket::new(sweep, entry, 0, Stage::Lease(shared));
        let mut state = self.state.lock();
        let lead = state.leads.get(number);
        let before = match lead.follows(&lease) {
            true => lead.served.replace(Arc::clone(&ticket)),
            false => None,
        };
        drop(state);
        drop(before);
        sweep.arm();
        ticket
    }

    /// A lease of this process, if each lead that is out has one: preferably one that is not on
    /// its way back.
    pub(super) fn held(&self) -> Option<Arc<Lease>> {
        self.state.lock().leads.held().cloned()
    }

    /// Whether the lock was held at `since` or later: in this process, or as the store has told a
    /// request that has ended.
    pub(super) fn was_held_since(&self, since: Instant) -> bool {
        self.state.lock().was_held.is_some_and(|was| was >= since)
    }

    /// A request that is on its way: preferably one that has heard from the store since then.
    /// `None` if no leader has asked.
    pub(super) fn asked(&self, since: Instant) -> Option<Request> {
        let state = self.state.lock();
        let asked = || state.leads.all().filter_map(|lead| lead.asked.as_ref());
        let heard = asked().find(|request| request.progress().heard_since(since));
        heard.or_else(|| asked().next()).cloned()
    }

    #[cfg(test)]
    pub(super) fn first_waiter(&self) -> Arc<Ticket> {
        let state = self.state.lock();
        Arc::clone(state.waiters.front().expect("somebody waits"))
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// Gives the lease to the next waiter that is still there. Returns the lease if there is none,
    /// if that waiter needs a fresh lease, if it is in doubt whether the waiters are polled, or if
    /// the lease has just been lost.
    pub(super) fn hand_over(&self, lease: SharedLease) -> Result<(), SharedLease> {
        let next = |shared: &SharedLease| {
            let lease = shared.guard.lease();
            self.state.lock().next_holder(shared.lead, lease)
        };
        let Some(mut ticket) = next(&lease) else {
            return Err(lease);
        };
        let mut given = Stage::Lease(lease.next());
        loop {
            match ticket.give(given) {
                Err(Stage::Lease(lease)) => match next(&lease) {
                    Some(other) => (ticket, given) = (other, Stage::Lease(lease)),
                    None => return Err(lease),
                },
                _ => return Ok(()),
            }
        }
    }

    fn next_leader(&self, number: LeadNumber, keeps_place: bool) -> Option<Arc<Ticket>> {
        let now = self.queues.sweep.leases.now();
        let mut state = self.state.lock();
        let _before = state.lead_passes(number, keeps_place, now);
        let next = match state.doubtful {
            true => state.next_who_comes(number),
            false => state.next(number),
        };
        drop(state);
        next
    }

    /// Makes the lead loose, and calls all waiters: the first that is polled takes it.
    fn let_loose(&self, number: LeadNumber, place: Option<StorePlace>) {
        let now = self.queues.sweep.leases.now();
        let before = {
            let mut state = self.state.lock();
            let before = state.lead_passes(number, place.is_some(), now);
            state.leads.let_loose(number, place);
            before
        };
        drop(before);
        self.call_all();
        self.close();
    }

    /// Wakes all waiters. Those that are not polled after this do not attend.
    pub(super) fn call_all(&self) {
        let waiters: Vec<_> = self.state.lock().waiters.iter().cloned().collect();
        for waiter in waiters {
            let _gone = waiter.give(Stage::Called);
        }
    }

    /// Gives a loose lead, if there is one, to this waiter, which is being polled.
    pub(super) fn take_loose(self: &Arc<Self>, ticket: &Arc<Ticket>) {
        let mut state = self.state.lock();
        let Some((number, place)) = state.take_loose() else {
            return;
        };
        state.take_out(ticket);
        state.leads.get(number).served = Some(Arc::clone(ticket));
        drop(state);
        // This fails only if the holder of another lead has given this waiter something meanwhile.
        // Then the lead is dropped, which passes it on.
        let _given = ticket.give(Stage::Lead(Lead::new(Arc::clone(self) as _, number, place)));
    }

    /// Fails all waiters: in an outage they would only find it out again, one after the other.
    pub(super) fn fail_all(&self, not_granted: &NotGranted) {
        let waiters = std::mem::take(&mut self.state.lock().waiters);
        fail(waiters, not_granted);
    }

    /// An operator has removed a request from the store's queue. If it was the only one, all
    /// waiters have lost their place with it; otherwise only the task that asked is told.
    pub(super) fn place_was_taken(&self, not_granted: &NotGranted) {
        let is_alone = self.state.lock().leads.out() == 1;
        if is_alone {
            self.fail_all(not_granted);
        }
    }

    /// Fails the tasks that waited when the store was asked. The answer may be outdated for
    /// those that came later, so they ask for themselves.
    pub(super) fn fail_who_waited(&self, number: LeadNumber, not_granted: &NotGranted) {
        let waited = {
            let mut state = self.state.lock();
            let before = state.leads.get(number).came_before;
            let waited = state.waiters.partition_point(|one| one.number <= before);
            let since = state.waiters.split_off(waited);
            std::mem::replace(&mut state.waiters, since)
        };
        fail(waited, not_granted);
    }

    /// Whether this task came after the last question of the lead was asked.
    pub(super) fn came_since(&self, number: LeadNumber, ticket: &Ticket) -> bool {
        ticket.number > self.state.lock().leads.get(number).came_before
    }

    /// Takes out a waiter that was dropped.
    pub(super) fn left(&self, ticket: &Ticket) {
        let is_loose = {
            let mut state = self.state.lock();
            state.take_out(ticket);
            state.leads.is_loose()
        };
        if is_loose {
            self.close();
        }
    }

    /// Makes loose leads spare if no task waits, and removes the queue once all of its leads
    /// are spare.
    fn close(&self) {
        let mut open = self.queues.open.lock();
        let mut state = self.state.lock();
        let (mut gone, mut queue) = (SmallVec::<[_; 1]>::new(), None);
        while state.waiters.is_empty()
            && let Some((number, place)) = state.leads.take_loose()
        {
            gone.push((place, state.leads.put_back(number)));
            if state.leads.out() == 0 {
                queue = open.queues.remove(&self.name);
            }
        }
        drop(state);
        drop(open);
        drop((gone, queue));
    }

    /// The tasks that were served last, and whether others wait behind them. Gives up places in
    /// the store's queue that have been loose since the look before.
    pub(super) fn look(&self) -> (Vec<Served>, bool) {
        // Dropped after the mutex is released.
        let mut places = Vec::new();
        let mut state = self.state.lock();
        let mut heard = None;
        for lead in state.leads.all_mut() {
            if let Some(place) = lead.leave_place() {
                places.push(place);
                heard = heard.max(lead.asks_no_more());
            }
        }
        state.was_held = state.was_held.max(heard);
        let served = state.leads.all().filter_map(|lead| {
            let ticket = Arc::clone(lead.served.as_ref()?);
            let asked = lead.asked.clone();
            Some(Served { ticket, asked })
        });
        (served.collect(), !state.waiters.is_empty())
    }

    /// The sweep need not look at this task any more.
    pub(super) fn forget_served(&self, ticket: &Arc<Ticket>) {
        let mut state = self.state.lock();
        let is_it = |one: &mut Arc<Ticket>| Arc::ptr_eq(one, ticket);
        let mut all = state.leads.all_mut();
        let _served = all.find_map(|lead| lead.served.take_if(is_it));
        drop(all);
        drop(state);
    }

    /// A task did not collect what it was given; those behind it may not either.
    pub(super) fn doubt(&self) {
        self.state.lock().doubtful = true;
    }
}

fn fail(waiters: VecDeque<Arc<Ticket>>, not_granted: &NotGranted) {
    for waiter in waiters {
        let _gone = waiter.give(Stage::Failed(not_granted.clone()));
    }
}

impl Led for Queue {
    /// If no task can take the lead now, it becomes loose. If no task waits at all, this closes the
    /// queue.
    fn pass_on(self: Arc<Self>, number: LeadNumber, place: Option<StorePlace>) {
        let place = place.filter(|place| !place.tries);
        let Some(next) = self.next_leader(number, place.is_some()) else {
            return self.let_loose(number, place);
        };
        // If that task has just left, the lead comes back and is dropped, which passes it on
        // again.
        let _back = next.give(Stage::Lead(Lead::new(self, number, place)));
    }
}

impl Follower for Queue {
    fn goes_on(self: Arc<Self>, number: u32) {
        self.pass_on(LeadNumber(number), None);
    }
}
