//! A turn: a task's time with a lease, and what comes after it.

use tokio::time::Instant;

use super::queue::{Delivery, Queue};
use super::Baton;
use crate::backend::{BackendError, Released};
use crate::lease::{OwnedLease, Renewals};
use crate::token::FencingToken;

/// One task's time with a lease. Dropped, the lease goes back to the store; a
/// turn that nobody began goes to the next task first.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Present until the turn ends.
    parts: Option<Parts>,
    begun: bool,
}

#[derive(Debug)]
struct Parts {
    lease: OwnedLease,
    /// Which hand-over of the lease this is, from 0.
    index: u32,
    /// How many more there may be.
    handovers_left: u32,
    /// None for a reader, which has no queue behind it.
    baton: Option<Baton>,
}

impl Turn {
    pub(super) fn first(lease: OwnedLease, handovers_left: u32, baton: Baton) -> Self {
        Self::from_parts(Parts { lease, index: 0, handovers_left, baton: Some(baton) })
    }

    pub(super) fn alone(lease: OwnedLease) -> Self {
        Self::from_parts(Parts { lease, index: 0, handovers_left: 0, baton: None })
    }

    fn from_parts(parts: Parts) -> Self {
        Self { parts: Some(parts), begun: false }
    }

    /// The body begins: from here on, only its normal end lets the lease be
    /// handed over.
    pub(crate) fn begin(&mut self, renewals: Renewals) {
        self.begun = true;
        if let Some(parts) = &self.parts {
            parts.lease.lease().set_renewals(renewals);
        }
    }

    pub(crate) fn lease(&self) -> &std::sync::Arc<crate::lease::Lease> {
        self.parts().lease.lease()
    }

    /// The token of this turn: greater than that of every turn before it.
    pub(crate) fn token(&self) -> FencingToken {
        let parts = self.parts();
        parts.lease.lease().token().handed_over(u64::from(parts.index))
    }

    /// Ends the turn after a body that ended normally: hands the lease over,
    /// or gives it back and waits until the store has answered. If
    /// `not_before` is still ahead, that happens in the background at that time.
    pub(crate) async fn end(
        mut self,
        not_before: Option<Instant>,
    ) -> Result<Released, BackendError> {
        let Some(parts) = self.parts.take() else { return Ok(Released::NotHeld) };
        if let Some(instant) = not_before.filter(|instant| *instant > parts.lease.now()) {
            parts.end_at(instant);
            return Ok(Released::Released);
        }
        match parts.hand_over() {
            Ok(()) => Ok(Released::Released),
            Err(Parts { lease, baton, .. }) => lease.release(baton).await,
        }
    }

    /// Ends the turn after a body that was cancelled, panicked or lost the
    /// lease, or a guard that was dropped: never hands it over.
    pub(crate) fn abandon(mut self, not_before: Option<Instant>) {
        let Some(mut parts) = self.parts.take() else { return };
        parts.handovers_left = 0;
        match not_before {
            Some(instant) => parts.end_at(instant),
            None => parts.release_later(),
        }
    }

    fn parts(&self) -> &Parts {
        // Only what ends the turn takes them out.
        self.parts.as_ref().unwrap_or_else(|| unreachable!("a turn ends once"))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else { return };
        if self.begun {
            parts.release_later();
        } else if let Err(parts) = parts.hand_over() {
            parts.release_later();
        }
    }
}

impl Parts {
    /// Gives the lease to the next task in this process, if the store's queue
    /// has been kept waiting less than the limit, and time is left on it.
    fn hand_over(self) -> Result<(), Self> {
        let Some(baton) = &self.baton else { return Err(self) };
        if self.handovers_left == 0 || !self.has_time_left() {
            return Err(self);
        }
        let next = baton
            .gate
            .queues()
            .get_mut(&baton.name)
            .and_then(Queue::pop_if_any_lease);
        let Some(waiter) = next else { return Err(self) };
        waiter.deliver(Delivery::Turn(Turn::from_parts(Self {
            index: self.index + 1,
            handovers_left: self.handovers_left - 1,
            ..self
        })));
        Ok(())
    }

    /// A lease that is renewed has two thirds of its ttl ahead at the least;
    /// half of that is left for the next body to start with.
    fn has_time_left(&self) -> bool {
        let lease = self.lease.lease();
        lease.remaining().is_some_and(|left| left > lease.ttl() / 3)
    }

    fn end_at(self, instant: Instant) {
        let Self { lease, index, handovers_left, baton } = self;
        lease.hold_until(instant, baton, move |lease, baton| {
            let parts = Self { lease, index, handovers_left, baton };
            if let Err(parts) = parts.hand_over() {
                parts.release_later();
            }
        });
    }

    fn release_later(self) {
        self.lease.release_later(self.baton);
    }
}
