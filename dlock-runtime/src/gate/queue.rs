//! The tasks that wait for one key in this process, in the order they came.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::place::StorePlace;
use super::probe::Probe;
use super::shared_lease::SharedLease;
use super::sweep::Sweep;
use super::ticket::{Entry, Given, Stage, Ticket};
use crate::backend::{Mode, Progress, Request};
use crate::lease::{Follower, NotHad};
use crate::observe;
use crate::sync::Mutex;

/// The queues of one manager, each from the task that opens it to the last.
#[derive(Debug, Default)]
pub(super) struct Queues {
    open: Mutex<Open>,
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
}

#[derive(Debug, Default)]
struct State {
    waiters: VecDeque<Arc<Ticket>>,
    /// Waiters that were dropped and still stand in the queue.
    gone: usize,
    /// Who was given the lease or the lead last, and may not have come for it, or
    /// asks the store.
    served: Option<Arc<Ticket>>,
    /// What the store is asked, or was for a place that is kept.
    asked: Option<Request>,
    holding: Holding,
    /// Somebody did not come for what it was given. Those behind may be the
    /// same: the lead goes to the first of them who comes, and not to the first.
    doubtful: bool,
    /// The lead is for the first who comes, with the place in the store's queue
    /// until the next look.
    loose: Option<Option<StorePlace>>,
    /// A question whether the store is there.
    probe: Option<Arc<Probe>>,
}

/// Whether the lock is held in this process, as far as its queue knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Holding {
    #[default]
    Nobody,
    Held,
    /// Nobody works under it any more. Since then the store is asked to take it
    /// back, and has not answered.
    Returning(Instant),
}

impl Queues {
    /// Opens a queue, or joins the one there is. `None`: the lock is held in this
    /// process, and the task does not wait. One that does not wait asks by itself
    /// where others ask already.
    pub(super) fn join(
        self: &Arc<Self>,
        key: &Arc<str>,
        entry: &Entry<'_>,
        sweep: &Arc<Sweep>,
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
                let ticket = Ticket::new(sweep, entry, Stage::Has(Given::Lead(loose)));
                state.doubtful = false;
                state.served = Some(Arc::clone(&ticket));
                drop(state);
                return Some((queue, ticket));
            }
            if !entry.try_only {
                let ticket = Ticket::new(sweep, entry, Stage::Waits);
                let (ahead, may_be_neglected) = (state.len(), state.served.is_some());
                state.waiters.push_back(Arc::clone(&ticket));
                drop(state);
                drop(open);
                if may_be_neglected {
                    sweep.arm();
                }
                observe::waits_in_process(key, ahead);
                return Some((queue, ticket));
            }
            if state.holding == Holding::Held {
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
        });
        let ticket = Ticket::new(sweep, entry, Stage::Has(Given::Lead(None)));
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
    }

    /// The lock is held from now on. Says how many wait for it.
    pub(super) fn holds(&self) -> usize {
        let mut state = self.state.lock();
        state.holding = Holding::Held;
        state.served = None;
        state.asked = None;
        state.len()
    }

    pub(super) fn holding(&self) -> Holding {
        self.state.lock().holding
    }

    /// What the request of whoever leads has heard; none if nobody has asked.
    pub(super) fn progress(&self) -> Option<Progress> {
        self.asked().map(|request| request.progress().clone())
    }

    pub(super) fn asked(&self) -> Option<Request> {
        self.state.lock().asked.clone()
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.state.lock().len() > 0
    }

    /// Gives the lease to the next waiter that is still there, if a used one will do
    /// for it.
    pub(super) fn hand_over(&self, lease: SharedLease) -> Result<(), SharedLease> {
        let next = || self.state.lock().next_holder();
        let Some(mut ticket) = next() else {
            return Err(lease);
        };
        let mut given = Given::Lease(lease.next());
        loop {
            match ticket.give(given) {
                Err(Given::Lease(lease)) => match next() {
                    Some(other) => (ticket, given) = (other, Given::Lease(lease)),
                    None => return Err(lease),
                },
                _ => return Ok(()),
            }
        }
    }

    /// Gives the lead to the next in the queue, with the place in the store's queue
    /// if there is one; the last one closes the queue.
    pub(super) fn pass_on(&self, place: Option<StorePlace>) {
        let mut place = place.filter(StorePlace::can_be_kept);
        while let Some(next) = self.next_leader(place.is_some()) {
            match next.give(Given::Lead(place)) {
                Err(Given::Lead(back)) => place = back,
                _ => return,
            }
        }
        self.let_loose(place);
    }

    fn next_leader(&self, keeps_place: bool) -> Option<Arc<Ticket>> {
        let mut state = self.state.lock();
        let _before = state.lead_passes(keeps_place);
        match state.doubtful {
            true => None,
            false => state.next(),
        }
    }

    /// Leaves the lead to the first who comes, and calls all.
    pub(super) fn let_loose(&self, place: Option<StorePlace>) {
        let place = place.filter(StorePlace::can_be_kept);
        let (waiters, before) = {
            let mut state = self.state.lock();
            let before = state.lead_passes(place.is_some());
            state.loose = Some(place);
            (state.waiters.iter().cloned().collect::<Vec<_>>(), before)
        };
        drop(before);
        let called = waiters.iter().filter(|one| one.call());
        if called.count() == 0 {
            self.close();
        }
    }

    /// The lead, if it is loose, for one who waits and is polled now.
    pub(super) fn take_loose(&self, ticket: &Arc<Ticket>) {
        let mut state = self.state.lock();
        let Some(place) = state.loose.take() else {
            return;
        };
        state.doubtful = false;
        state.waiters.retain(|one| !Arc::ptr_eq(one, ticket));
        state.served = Some(Arc::clone(ticket));
        drop(state);
        // Who has the lead gives, and nobody else: it waits still.
        let _given = ticket.give(Given::Lead(place));
    }

    /// An outage is everybody's: those who wait would only wait for it again, one
    /// after the other.
    pub(super) fn fail_all(&self, not_had: &NotHad) {
        let waiters = {
            let mut state = self.state.lock();
            state.gone = 0;
            std::mem::take(&mut state.waiters)
        };
        for waiter in waiters {
            let _gone = waiter.give(Given::Failed(not_had.clone()));
        }
    }

    /// A waiter was dropped. The queue is swept when half of it is gone, so that
    /// leaving costs little and nothing piles up.
    pub(super) fn left(&self) {
        let is_loose = {
            let mut state = self.state.lock();
            state.gone += 1;
            if state.gone * 2 > state.waiters.len() {
                state.waiters.retain(|waiter| waiter.is_waiting());
                state.gone = 0;
            }
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
        if state.loose.is_some() && !state.waiters.iter().any(|waiter| waiter.is_waiting()) {
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
        (state.served.clone(), state.len() > 0)
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

    /// The question whether the store is there that is on its way, or another.
    pub(super) fn probe(&self, begin: impl FnOnce() -> Arc<Probe>) {
        let probe = &mut self.state.lock().probe;
        if probe.as_ref().is_none_or(|known| known.is_answered()) {
            *probe = Some(begin());
        }
    }

    pub(super) fn last_probe(&self) -> Option<Arc<Probe>> {
        self.state.lock().probe.clone()
    }
}

impl State {
    /// How many wait for the lock.
    fn len(&self) -> usize {
        self.waiters.len().saturating_sub(self.gone)
    }

    /// Nobody leads. Whoever did is returned, to be dropped behind the lock.
    fn lead_passes(&mut self, keeps_place: bool) -> Option<Arc<Ticket>> {
        self.holding = Holding::Nobody;
        if !keeps_place {
            self.asked = None;
        }
        self.served.take()
    }

    /// The next waiter that is still there, which is to be given something.
    fn next(&mut self) -> Option<Arc<Ticket>> {
        self.skip_gone();
        let next = self.waiters.pop_front()?;
        self.served = Some(Arc::clone(&next));
        Some(next)
    }

    /// The next waiter that is still there, if a used lease will do for it.
    fn next_holder(&mut self) -> Option<Arc<Ticket>> {
        self.skip_gone();
        match self.waiters.front()?.is_fresh() {
            true => None,
            false => self.next(),
        }
    }

    fn skip_gone(&mut self) {
        while self
            .waiters
            .front()
            .is_some_and(|waiter| !waiter.is_waiting())
        {
            self.waiters.pop_front();
            self.gone = self.gone.saturating_sub(1);
        }
    }
}

impl Follower for Queue {
    fn lease_returns(&self, now: Instant) {
        let mut state = self.state.lock();
        if state.holding == Holding::Held {
            state.holding = Holding::Returning(now);
        }
    }

    fn goes_on(&self) {
        self.pass_on(None);
    }
}
