//! Who waits in a queue, and who goes on next.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::lead::LeadNumber;
use super::leads::Leads;
use super::ticket::Ticket;
use crate::lease::Lease;

#[derive(Debug, Default)]
pub(super) struct State {
    /// In the order of their numbers.
    pub(super) waiters: VecDeque<Arc<Ticket>>,
    /// How many have come to wait.
    pub(super) came: u64,
    pub(super) leads: Leads,
    /// When it was held last.
    pub(super) was_held: Option<Instant>,
    /// Somebody did not come for what it was given. Those behind may be the
    /// same: the lead goes to the first of them who came when it was called.
    pub(super) doubtful: bool,
}

impl State {
    /// Takes out a waiter, if it is still among them.
    pub(super) fn take_out(&mut self, ticket: &Ticket) {
        let found = self
            .waiters
            .binary_search_by_key(&ticket.number, |one| one.number);
        if let Ok(index) = found {
            self.waiters.remove(index);
        }
    }

    /// Nobody has this lead. Who did, and what it had, are to be dropped behind the lock.
    pub(super) fn lead_passes(
        &mut self,
        number: LeadNumber,
        keeps_place: bool,
        now: Instant,
    ) -> (Option<Arc<Ticket>>, Option<Arc<Lease>>) {
        let lead = self.leads.get(number);
        if !keeps_place {
            lead.asked = None;
        }
        let before = (lead.served.take(), self.leads.take_held(number));
        if before.1.is_some() {
            self.was_held = Some(now);
        }
        before
    }

    /// The next waiter, which is to be given something.
    pub(super) fn next(&mut self, number: LeadNumber) -> Option<Arc<Ticket>> {
        let next = self.waiters.pop_front()?;
        self.leads.get(number).served = Some(Arc::clone(&next));
        Some(next)
    }

    /// The first waiter that came when all were called, or has come to wait since.
    pub(super) fn next_who_comes(&mut self, number: LeadNumber) -> Option<Arc<Ticket>> {
        let comes = self.waiters.iter().position(|one| one.attends())?;
        self.doubtful = false;
        let next = self.waiters.remove(comes)?;
        self.leads.get(number).served = Some(Arc::clone(&next));
        Some(next)
    }

    /// The next waiter, if a used lease will do for it, and it is not in doubt.
    pub(super) fn next_holder(&mut self, number: LeadNumber) -> Option<Arc<Ticket>> {
        match self.doubtful || self.waiters.front()?.fresh {
            true => None,
            false => self.next(number),
        }
    }
}
