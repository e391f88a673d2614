//! A lease that goes from task to task.

use super::lead::LeadNumber;
use crate::lease::{LeaseGuard, Renewals};
use crate::token::FencingToken;

/// A lease that the tasks of one queue have one after the other. Dropped, it goes
/// back to the store.
#[derive(Debug)]
pub(super) struct SharedLease {
    pub(super) guard: LeaseGuard,
    /// The lead that follows it.
    pub(super) lead: LeadNumber,
    /// Which hand-over of the lease this is, from 0.
    index: u32,
    /// How many more there may be.
    pub(super) handovers_left: u32,
}

impl SharedLease {
    pub(super) fn new(guard: LeaseGuard, lead: LeadNumber, handovers_left: u32) -> Self {
        Self {
            guard,
            lead,
            index: 0,
            handovers_left,
        }
    }

    /// Greater than that of every task before this one.
    pub(super) fn token(&self) -> FencingToken {
        let grant = self.guard.lease().token();
        grant.handed_over(u64::from(self.index))
    }

    /// Whether the next task may have it: the store's queue has been kept waiting
    /// less than the limit, time is left, and it is not the last who has had it: what was to
    /// be done once has not been done. A lease that is renewed has two thirds
    /// of its ttl ahead at the least; half of that is left for the next body to
    /// start with.
    pub(super) fn may_go_on(&self) -> bool {
        let lease = self.guard.lease();
        let has_time = || lease.remaining().is_some_and(|left| left > lease.ttl() / 3);
        self.handovers_left > 0 && has_time() && lease.done_for().is_none()
    }

    /// The lease for the next task, with a greater token.
    pub(super) fn next(mut self) -> Self {
        self.index += 1;
        self.handovers_left -= 1;
        let lease = self.guard.lease();
        // Renewed until the next body begins, however the last one wanted it.
        self.guard.set_renewals(Renewals::Always);
        lease.section().handed_over(lease.key(), self.token());
        self
    }
}
