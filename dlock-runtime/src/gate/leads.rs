//! The leads of a queue: how far each of them is.

use std::sync::Arc;

use super::lead::{LeadNumber, StorePlace};
use super::ticket::Ticket;
use crate::backend::Request;
use crate::lease::Lease;

/// A lead for each body that may be in at once: one for writers, and as many as there are
/// permits. Not one more is made than tasks have asked for at once.
#[derive(Debug, Default)]
pub(super) struct Leads {
    /// Of most queues there is no other.
    first: LeadState,
    more: Vec<LeadState>,
    /// Those that nobody has.
    spare: Vec<LeadNumber>,
    /// Under how many the lock is held.
    held: usize,
    /// How many are for whoever comes.
    loose: usize,
}

/// One of them. It is with a task, or on its way to one; or it follows the lease; or it
/// is loose.
#[derive(Debug, Default)]
pub(super) struct LeadState {
    /// Who was given the lease or the lead last, and may not have come for it, asks
    /// the store, or waits for other keys.
    pub(super) served: Option<Arc<Ticket>>,
    /// What the store is asked, or was for a place that is kept.
    pub(super) asked: Option<Request>,
    /// How many had come to wait when it was asked.
    pub(super) came_before: u64,
    /// The lock as it is held in this process, until the lead passes on.
    held: Option<Arc<Lease>>,
    /// The lead is for the first who comes, with the place in the store's queue
    /// until the next look.
    pub(super) loose: Option<Option<StorePlace>>,
}

impl Leads {
    pub(super) fn get(&mut self, number: LeadNumber) -> &mut LeadState {
        match usize::try_from(number.0) {
            Ok(index @ 1..) if index <= self.more.len() => &mut self.more[index - 1],
            _ => &mut self.first,
        }
    }

    /// One that nobody has, if there may be `most`.
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

    /// How many somebody has.
    pub(super) fn out(&self) -> usize {
        1 + self.more.len() - self.spare.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &LeadState> {
        std::iter::once(&self.first).chain(&self.more)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut LeadState> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }

    /// Whether somebody may not have come for what it was given.
    pub(super) fn may_be_neglected(&self) -> bool {
        // Of many, the sweep finds out.
        self.first.served.is_some() || !self.more.is_empty()
    }

    /// The lock is held under this lead.
    pub(super) fn holds(&mut self, number: LeadNumber, lease: &Arc<Lease>) {
        self.held += 1;
        let lead = self.get(number);
        lead.held = Some(Arc::clone(lease));
        lead.served = None;
        lead.asked = None;
    }

    /// It is not any more.
    pub(super) fn take_held(&mut self, number: LeadNumber) -> Option<Arc<Lease>> {
        let held = self.get(number).held.take();
        self.held -= usize::from(held.is_some());
        held
    }

    /// A lease, if there is one under each that somebody has: of those that are not on their
    /// way back, if there is one.
    pub(super) fn held(&self) -> Option<&Arc<Lease>> {
        if self.held < self.out() {
            return None;
        }
        let held = || self.all().filter_map(|lead| lead.held.as_ref());
        let stays = held().find(|lease| lease.returns_since().is_none());
        stays.or_else(|| held().next())
    }

    /// It is for whoever comes first, with this place.
    pub(super) fn let_loose(&mut self, number: LeadNumber, place: Option<StorePlace>) {
        self.loose += 1;
        self.get(number).loose = Some(place);
    }

    /// The first that is for whoever comes.
    pub(super) fn take_loose(&mut self) -> Option<(LeadNumber, Option<StorePlace>)> {
        self.loose = self.loose.checked_sub(1)?;
        let mut all = (0..).map(LeadNumber).zip(self.all_mut());
        all.find_map(|(number, lead)| Some((number, lead.loose.take()?)))
    }

    pub(super) fn is_loose(&self) -> bool {
        self.loose > 0
    }

    /// Nobody has this one any more. What it was is to be dropped behind the lock.
    #[must_use]
    pub(super) fn put_back(&mut self, number: LeadNumber) -> LeadState {
        self.spare.push(number);
        std::mem::take(self.get(number))
    }
}
