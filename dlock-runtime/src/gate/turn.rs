//! A turn: a task's time with a lease, and its end.

use std::sync::Arc;

use tokio::time::Instant;

use super::queue::Queue;
use super::shared_lease::SharedLease;
use crate::backend::{BackendError, Released};
use crate::lease::{Lease, LeaseGuard, Renewable, Renewals};
use crate::observe::SectionSpan;
use crate::token::FencingToken;

/// One task's time with a lease. When dropped, the lease goes back to the store; if no body had
/// begun, it is first offered to the next task.
#[derive(Debug)]
pub(crate) struct Turn {
    /// `None` once the turn has ended.
    pub(super) lease: Option<SharedLease>,
    pub(super) queue: Arc<Queue>,
    begun: bool,
}

impl Turn {
    pub(super) fn new(lease: SharedLease, queue: &Arc<Queue>) -> Self {
        Self {
            lease: Some(lease),
            queue: Arc::clone(queue),
            begun: false,
        }
    }

    /// The body begins. From now on the lease is handed over only if the body ends normally.
    pub(crate) fn begin(&mut self, section: SectionSpan, renewals: Renewals) {
        self.begun = true;
        self.lease().set_section(section);
        self.shared().guard.set_renewals(renewals);
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        self.shared().guard.lease()
    }

    /// Its lease, for a renewal.
    pub(crate) fn renewable(&self) -> Renewable {
        self.shared().guard.renewable()
    }

    /// The token of this turn, greater than those of all turns before it.
    pub(crate) fn token(&self) -> FencingToken {
        self.shared().token()
    }

    /// Ends the turn of a body that ended normally, if the lease can be handed over at once.
    pub(crate) fn hand_over(mut self, not_before: Option<Instant>) -> Result<(), Self> {
        match self.kept_until(not_before).is_none() && self.passes() {
            true => Ok(()),
            false => Err(self),
        }
    }

    /// Ends the turn of a body that ended normally: hands the lease over, or gives it back and
    /// waits for the store's answer. If `not_before` is still ahead, the store is told so, and
    /// the lease goes back at that time, in the background.
    pub(crate) async fn end(
        mut self,
        not_before: Option<Instant>,
    ) -> Result<Released, BackendError> {
        let kept_until = self.kept_until(not_before);
        if kept_until.is_none() && self.passes() {
            return Ok(Released::Released);
        }
        // If tasks wait, one of them will ask the store for the lock next.
        let followed = self.queue.is_waited_for();
        match (self.take(), kept_until) {
            (Some(lease), None) => lease.release(followed).await,
            (Some(lease), Some(instant)) => lease.release_at(instant).await,
            (None, _) => Ok(Released::NotHeld),
        }
    }

    /// Rules out a hand-over: some body inside was cancelled, panicked or lost the lease.
    pub(crate) fn rule_out_handover(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.handovers_left = 0;
        }
    }

    /// Ends the turn of a body that was cancelled, panicked or lost the lease, or of a guard that
    /// was dropped. The lease is not handed over.
    pub(crate) fn abandon(mut self, not_before: Option<Instant>) {
        let kept_until = self.kept_until(not_before);
        match (self.take(), kept_until) {
            (Some(lease), Some(instant)) => lease.abandon_at(instant),
            (lease, _) => drop(lease),
        }
    }

    /// Gives the lease to the next task of this process. Returns whether one took it.
    fn passes(&mut self) -> bool {
        let Some(lease) = self.lease.take_if(|lease| lease.may_go_on()) else {
            return false;
        };
        self.lease = self.queue.hand_over(lease).err();
        self.lease.is_none()
    }

    /// Until when the lock is kept after its body has ended: `None` if that has passed, or the
    /// lease is lost.
    fn kept_until(&self, not_before: Option<Instant>) -> Option<Instant> {
        let guard = &self.shared().guard;
        let lease = guard.lease();
        let ahead = |&instant: &Instant| instant > guard.now() && lease.is_held();
        // The mark of a `once` keeps others out as well, so the lock need not be kept.
        not_before.filter(|instant| ahead(instant) && !lease.is_remembered_until(*instant))
    }

    fn take(&mut self) -> Option<LeaseGuard> {
        self.lease.take().map(|lease| lease.guard)
    }

    fn shared(&self) -> &SharedLease {
        // Only the methods that consume the turn take it out.
        self.lease
            .as_ref()
            .unwrap_or_else(|| unreachable!("a turn ends once"))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.begun && self.lease.is_some() {
            self.passes();
        }
    }
}
