//! A lease that goes from task to task.

use super::lead::LeadNumber;
use crate::lease::{LeaseGuard, Renewals};
use crate::token::FencingToken;

/// A lease that the tasks of one queue use one after the other. When dropped, it goes back to
/// the store.
#[derive(Debug)]
pub(super) struct SharedLease {
    pub(super) guard: LeaseGuard,
    /// The lead that follows it.
    pub(super) lead: LeadNumber,
    /// How often the lease was handed over so far.
    index: u32,
    /// How often it may still be handed over.
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

    /// The token of the present task, greater than those of the tasks before it.
    pub(super) fn token(&self) -> FencingToken {
        let grant = self.guard.lease().token();
        grant.handed_over(u64::from(self.index))
    }

    /// Whether it may be handed over: hand-overs are left (their number is limited for the sake of
    /// other processes), the work of its `once` is not done, and more than a third of the ttl is
    /// left. A lease that is renewed in time always has at least two thirds of its ttl left, so
    /// only a lease that was not renewed lacks the time.
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
        // It is renewed until the next body begins, whatever the last body asked for.
        self.guard.set_renewals(Renewals::Always);
        lease.section().handed_over(lease.key(), self.token());
        self
    }
}
