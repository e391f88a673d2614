//! The waiters of a queue, and which of them is next.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::lead::LeadNumber;
use super::leads::Leads;
use super::ticket::Ticket;
use crate::lease::Lease;

#[derive(Debug, Default)]
pub(super) struct State {
    /// Sorted by their numbers.
    pub(super) waiters: VecDeque<Arc<Ticket>>,
    /// The number of the last task that came to wait.
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

    /// Takes out the next waiter, unless that needs a fresh lease. Takes out none while it is in
    /// doubt whether the waiters are polled.
    pub(super) fn next_holder(&mut self, number: LeadNumber) -> Option<Arc<Ticket>> {
        match self.doubtful || self.waiters.front()?.fresh {
            true => None,
            false => self.next(number),
        }
    }
}
