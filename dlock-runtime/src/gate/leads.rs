//! The state of a queue: who waits, which of them is next, and its leads.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::lead::{LeadNumber, StorePlace};
use super::ticket::Ticket;
use crate::backend::Request;
use crate::lease::Lease;

#[derive(Debug, Default)]
pub(super) struct State {
    /// Sorted by their numbers.
    pub(super) waiters: VecDeque<Arc<Ticket>>,
    /// The number of the last task that came to wait, or to take a lead.
    pub(super) came: u64,
    pub(super) leads: Leads,
    /// When this process last held the lock, or one of its requests that has ended was told that
    /// somebody holds it.
    pub(super) was_held: Option<Instant>,
    /// A task did not collect what it was given, and those behind it may not either. So all are
    /// called, and the lead goes to the first that is polled.
    pub(super) doubtful: bool,
}

impl State {
    /// Takes out a waiter, if it is still there.
    pub(super) fn take_out(&mut self, ticket: &Ticket) {
        let found = self
            .waiters
            .binary_search_by_key(&ticket.number, |one| one.number);
        if let Ok(index) = found {
            self.waiters.remove(index);
        }
    }

    /// The lead leaves its task and its lease, which are returned: drop them after the mutex is
    /// released.
    pub(super) fn lead_passes(
        &mut self,
        number: LeadNumber,
        keeps_place: bool,
        now: Instant,
    ) -> (Option<Arc<Ticket>>, Option<Arc<Lease>>) {
        if !keeps_place {
            self.asks_no_more(number);
        }
        let served = self.leads.get(number).served.take();
        let before = (served, self.leads.take_held(number));
        if let Some(lease) = &before.1 {
            // A lease on its way back may be over, whatever becomes of its release.
            let last = lease.returns_since().unwrap_or(now);
            self.was_held = self.was_held.max(Some(last));
        }
        before
    }

    /// The request of this lead has ended, if there was one.
    pub(super) fn asks_no_more(&mut self, number: LeadNumber) {
        let heard = self.leads.get(number).asks_no_more();
        self.was_held = self.was_held.max(heard);
    }

    /// Takes out the next waiter, which is about to be given something.
    pub(super) fn next(&mut self, number: LeadNumber) -> Option<Arc<Ticket>> {
        let next = self.waiters.pop_front()?;
        self.leads.get(number).served = Some(Arc::clone(&next));
        Some(next)
    }

    /// Takes out the first waiter that has been polled since all were called, or that came after
    /// that.
    pub(super) fn next_who_comes(&mut self, number: LeadNumber) -> Option<Arc<Ticket>> {
        let comes = self.waiters.iter().position(|one| one.attends())?;
        self.doubtful = false;
        let next = self.waiters.remove(comes)?;
        self.leads.get(number).served = Some(Arc::clone(&next));
        Some(next)
    }

    /// Takes the first loose lead, with its place, for a task that is being polled: so one attends.
    pub(super) fn take_loose(&mut self) -> Option<(LeadNumber, Option<StorePlace>)> {
        let loose = self.leads.take_loose()?;
        self.doubtful = false;
        Some(loose)
    }

    /// Takes out the next waiter for this lease, unless that waiter needs a fresh one, or the lease
    /// is lost and its lead is somebody else's by now. Takes out none while it is in doubt whether
    /// the waiters are polled.
    pub(super) fn next_holder(
        &mut self,
        number: LeadNumber,
        lease: &Arc<Lease>,
    ) -> Option<Arc<Ticket>> {
        let needs_fresh = self.waiters.front()?.fresh;
        match self.doubtful || needs_fresh || !self.leads.get(number).follows(lease) {
            true => None,
            false => self.next(number),
        }
    }
}

/// One lead for each body that may run at once: one for writers, up to `n` for permits. They are
/// made on demand.
#[derive(Debug, Default)]
pub(super) struct Leads {
    /// Most queues have only this one.
    first: LeadState,
    more: Vec<LeadState>,
    /// Leads that are free: no task has them, and they follow no lease.
    spare: SmallVec<[LeadNumber; 2]>,
    /// The number of leads under which the lock is held.
    held: usize,
    /// The number of leads that are loose.
    loose: usize,
}

/// The state of a lead. A lead is with a task or on its way to one, or follows a lease, or is
/// loose: the next task that is polled takes it. Otherwise it is spare.
#[derive(Debug, Default)]
pub(super) struct LeadState {
    /// The task that was given the lease or the lead last. It may not have collected that yet,
    /// be asking the store, or be waiting for its other keys.
    pub(super) served: Option<Arc<Ticket>>,
    /// The request that is on its way, or whose place in the store's queue is kept.
    pub(super) asked: Option<Request>,
    /// The number of the last task that waited when that request began.
    pub(super) came_before: u64,
    /// The lease that the lead follows.
    held: Option<Arc<Lease>>,
    /// Present while the lead is loose.
    loose: Option<Loose>,
}

/// A lead that waits for a task to take it.
#[derive(Debug)]
struct Loose {
    /// The place in the store's queue. It is kept until the sweep looks next.
    place: Option<StorePlace>,
}

impl LeadState {
    /// The request has ended. Returns when it was last told that somebody holds the lock, which
    /// counts for those who waited behind it.
    pub(super) fn asks_no_more(&mut self) -> Option<Instant> {
        self.asked.take()?.progress().heard()
    }

    /// Whether this is its lease. Once a lease is lost, its lead is another task's, whoever still
    /// has the lease.
    pub(super) fn follows(&self, lease: &Arc<Lease>) -> bool {
        let is_it = |held| Arc::ptr_eq(held, lease);
        self.held.as_ref().is_some_and(is_it)
    }

    /// The place of a loose lead in the store's queue, to be given up.
    pub(super) fn leave_place(&mut self) -> Option<StorePlace> {
        self.loose.as_mut()?.place.take()
    }
}

impl Leads {
    pub(super) fn get(&mut self, number: LeadNumber) -> &mut LeadState {
        match usize::try_from(number.0) {
            Ok(index @ 1..) if index <= self.more.len() => &mut self.more[index - 1],
            _ => &mut self.first,
        }
    }

    /// A lead that is free, or a new one unless there are `most` already.
    pub(super) fn another(&mut self, most: u32) -> Option<LeadNumber> {
        if let Some(spare) = self.spare.pop() {
            return Some(spare);
        }
        let number = u32::try_from(self.more.len()).ok()?.checked_add(1)?;
        if number >= most {
            return None;
        }
        self.more.push(LeadState::default());
        Some(LeadNumber(number))
    }

    /// The number of leads that are not spare.
    pub(super) fn out(&self) -> usize {
        1 + self.more.len() - self.spare.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &LeadState> {
        std::iter::once(&self.first).chain(&self.more)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut LeadState> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }

    /// Whether a task may have left uncollected what it was given.
    pub(super) fn may_be_neglected(&self) -> bool {
        // With several leads, the sweep finds it out.
        self.first.served.is_some() || !self.more.is_empty()
    }

    /// The lock is held by this lease from now on, under this lead.
    pub(super) fn holds(&mut self, number: LeadNumber, lease: &Arc<Lease>) {
        self.held += 1;
        let lead = self.get(number);
        lead.held = Some(Arc::clone(lease));
        lead.served = None;
        lead.asked = None;
    }

    /// The lock is no longer held under this lead.
    pub(super) fn take_held(&mut self, number: LeadNumber) -> Option<Arc<Lease>> {
        let held = self.get(number).held.take();
        self.held -= usize::from(held.is_some());
        held
    }

    /// A lease, if every lead that is out has one: preferably one that is not on its way back.
    pub(super) fn held(&self) -> Option<&Arc<Lease>> {
        if self.held < self.out() {
            return None;
        }
        let held = || self.all().filter_map(|lead| lead.held.as_ref());
        let stays = held().find(|lease| lease.returns_since().is_none());
        stays.or_else(|| held().next())
    }

    /// Leaves the lead and this place to the first task that is polled.
    pub(super) fn let_loose(&mut self, number: LeadNumber, place: Option<StorePlace>) {
        self.loose += 1;
        self.get(number).loose = Some(Loose { place });
    }

    /// Takes the first loose lead, with its place.
    pub(super) fn take_loose(&mut self) -> Option<(LeadNumber, Option<StorePlace>)> {
        self.loose = self.loose.checked_sub(1)?;
        let mut all = (0..).map(LeadNumber).zip(self.all_mut());
        all.find_map(|(number, lead)| Some((number, lead.loose.take()?.place)))
    }

    pub(super) fn is_loose(&self) -> bool {
        self.loose > 0
    }

    /// Makes a lead spare. Drop what is returned after the mutex is released.
    #[must_use]
    pub(super) fn put_back(&mut self, number: LeadNumber) -> LeadState {
        self.spare.push(number);
        std::mem::take(self.get(number))
    }
}
