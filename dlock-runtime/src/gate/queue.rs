//! The tasks that wait for one key in this process, in the order they came.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::lead::{Lead, LeadNumber, Led, StorePlace};
use super::probe::Probe;
use super::shared_lease::SharedLease;
use super::state::State;
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

/// What queues are told apart by. Leases of one length and mode may be handed over to
/// each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Name {
    key: Arc<str>,
    ttl: Duration,
    of: Of,
}

/// Whose a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Of {
    Writers,
    /// Who wants one of so many permits.
    Permits(u32),
    /// A task's own, which nobody else finds.
    One(u64),
}

/// A queue. A [lead](super::leads::Leads) of it is with one of its tasks, or on its way
/// to one; or it follows the lease, and passes on when that is lost, or has gone back; or
/// it is loose. Who finds a lead that nobody has leads; else it waits.
#[derive(Debug)]
pub(super) struct Queue {
    name: Name,
    queues: Arc<Queues>,
    state: Mutex<State>,
    /// The last question whether the store is there.
    pub(super) probe: Mutex<Option<Arc<Probe>>>,
}

/// Who was served last under a lead.
pub(super) struct Served {
    pub(super) ticket: Arc<Ticket>,
    /// What it has asked the store.
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
            let loose = state.leads.take_loose();
            state.doubtful &= loose.is_none();
            let lead = loose.or_else(|| {
                let spare = state.leads.another(queue.bodies_at_once())?;
                Some((spare, None))
            });
            if let Some((number, mut place)) = lead {
                _place = place.take_if(|_| entry.try_only);
                let lead = Lead::new(Arc::clone(&queue) as _, number, place);
                let ticket = Ticket::new(&self.sweep, entry, 0, Stage::Lead(lead));
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
            if state
                .leads
                .held()
                .is_some_and(|lease| lease.returns_since().is_none())
            {
                return None;
            }
        }
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

    /// How many bodies there may be at once. With so many leads, the store is not asked for
    /// more than it can grant.
    fn bodies_at_once(&self) -> u32 {
        match self.name.of {
            Of::Permits(most) => most,
            Of::Writers | Of::One(_) => 1,
        }
    }

    /// The task with this lead asks the store.
    pub(super) fn asks(&self, number: LeadNumber, ticket: &Arc<Ticket>, request: Request) {
        let mut state = self.state.lock();
        let came = state.came;
        let lead = state.leads.get(number);
        lead.served = Some(Arc::clone(ticket));
        lead.asked = Some(request);
        lead.came_before = came;
    }

    /// The lock is held from now on under this lead. Says how many wait for this lease: the
    /// others are for other leads.
    pub(super) fn holds(&self, number: LeadNumber, lease: &Arc<Lease>) -> usize {
        let mut state = self.state.lock();
        state.leads.holds(number, lease);
        state.waiters.len().div_ceil(state.leads.out())
    }

    /// A call of several keys has this lease, and waits for the others.
    pub(super) fn keeps(&self, lease: SharedLease, entry: &Entry<'_>) -> Arc<Ticket> {
        let sweep = &self.queues.sweep;
        let number = lease.lead;
        let ticket = Ticket::new(sweep, entry, 0, Stage::Lease(lease));
        let mut state = self.state.lock();
        let served = &mut state.leads.get(number).served;
        let before = served.replace(Arc::clone(&ticket));
        drop(state);
        drop(before);
        sweep.arm();
        ticket
    }

    /// A lease under which the lock is held in this process, if it is under each lead: of
    /// those that are not on their way back, if there is one.
    pub(super) fn held(&self) -> Option<Arc<Lease>> {
        self.state.lock().leads.held().cloned()
    }

    /// Whether the lock was held in this process at `since` or later.
    pub(super) fn was_held_since(&self, since: Instant) -> bool {
        self.state.lock().was_held.is_some_and(|was| was >= since)
    }

    /// The request of whoever leads, of several one that has heard from the store since
    /// then; none if nobody has asked.
    pub(super) fn asked(&self, since: Instant) -> Option<Request> {
        let state = self.state.lock();
        let mut asked = state.leads.all().filter_map(|lead| lead.asked.as_ref());
        let first = asked.next()?;
        let has_heard = |request: &&Request| request.progress().heard_since(since);
        Some(first)
            .into_iter()
            .chain(asked)
            .find(has_heard)
            .or(Some(first))
            .cloned()
    }

    pub(super) fn is_waited_for(&self) -> bool {
        !self.state.lock().waiters.is_empty()
    }

    /// Gives the lease to the next waiter that is still there, if a used one will do
    /// for it.
    pub(super) fn hand_over(&self, lease: SharedLease) -> Result<(), SharedLease> {
        let number = lease.lead;
        let next = || self.state.lock().next_holder(number);
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

    /// Leaves the lead to the first who comes, and calls all.
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
        let Some((number, place)) = state.leads.take_loose() else {
            return;
        };
        state.doubtful = false;
        state.take_out(ticket);
        state.leads.get(number).served = Some(Arc::clone(ticket));
        drop(state);
        // Who has the lead gives, and nobody else: it waits still.
        let _given = ticket.give(Stage::Lead(Lead::new(Arc::clone(self) as _, number, place)));
    }

    /// An outage is everybody's: those who wait would only wait for it again, one
    /// after the other.
    pub(super) fn fail_all(&self, not_had: &NotHad) {
        let waiters = std::mem::take(&mut self.state.lock().waiters);
        fail(waiters, not_had);
    }

    /// The place in the store's queue was taken away: that of all who wait, if there is no
    /// other. Else others have one, and who led this one is told alone.
    pub(super) fn place_was_taken(&self, not_had: &NotHad) {
        let is_alone = self.state.lock().leads.out() == 1;
        if is_alone {
            self.fail_all(not_had);
        }
    }

    /// What was so when the store was asked is so for those who waited then. Who has come
    /// since asks by itself: it may not be so any more.
    pub(super) fn fail_who_waited(&self, number: LeadNumber, not_had: &NotHad) {
        let waited = {
            let mut state = self.state.lock();
            let before = state.leads.get(number).came_before;
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
            state.leads.is_loose()
        };
        if is_loose {
            self.close();
        }
    }

    /// If nobody waits, nobody has the leads any more that are loose; and once there are no
    /// others, nobody finds the queue.
    fn close(&self) {
        let mut open = self.queues.open.lock();
        let mut state = self.state.lock();
        let (mut gone, mut queue) = (Vec::new(), None);
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

    /// Who was served last, and whether others wait behind them. A place that
    /// nobody has come to go on with is given up.
    pub(super) fn look(&self) -> (Vec<Served>, bool) {
        // Dropped behind the lock.
        let mut places = Vec::new();
        let mut state = self.state.lock();
        for lead in state.leads.all_mut() {
            if let Some(place) = lead.loose.as_mut().and_then(Option::take) {
                places.push(place);
                lead.asked = None;
            }
        }
        let served = state.leads.all().filter_map(|lead| {
            let ticket = Arc::clone(lead.served.as_ref()?);
            let asked = lead.asked.clone();
            Some(Served { ticket, asked })
        });
        (served.collect(), !state.waiters.is_empty())
    }

    /// It holds up nobody any more.
    pub(super) fn was_served(&self, ticket: &Arc<Ticket>) {
        let mut state = self.state.lock();
        let is_it = |one: &mut Arc<Ticket>| Arc::ptr_eq(one, ticket);
        let mut all = state.leads.all_mut();
        let _served = all.find_map(|lead| lead.served.take_if(is_it));
        drop(all);
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

impl Led for Queue {
    /// The last one closes the queue.
    fn pass_on(self: Arc<Self>, number: LeadNumber, place: Option<StorePlace>) {
        let place = place.filter(|place| !place.tries);
        let Some(next) = self.next_leader(number, place.is_some()) else {
            return self.let_loose(number, place);
        };
        // If it has left meanwhile, what comes back is dropped, and passes on.
        let _back = next.give(Stage::Lead(Lead::new(self, number, place)));
    }
}

impl Follower for Queue {
    fn goes_on(self: Arc<Self>, number: u32) {
        self.pass_on(LeadNumber(number), None);
    }
}
