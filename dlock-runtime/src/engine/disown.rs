//! Grants to owners of this process that do not wait: undone, or answered.
//!
//! A server that was cut off may serve for a moment longer than its replica hears of it. When that
//! replica takes over, its queues hold waiters that had their lock long ago. It would grant the
//! lock to them one after the other, each time for as long as a grant waits for an answer. Their
//! process is alive and is notified of the first such grant. It then undoes that grant and removes
//! all its unknown places from that queue. So the stale places of each process cost those who wait
//! two round trips, and nobody has to search for them.
//!
//! Such an owner may also still hold the lock, which the earlier server granted. Then it keeps the
//! lock by the new grant. The engine answers that grant with a renewal at once, because the
//! holder's next regular renewal may come too late.

use std::sync::Arc;
use std::time::Duration;

use super::Running;
use super::call::attempts;
use crate::apart::outlined;
use crate::backend::{BackendError, Renewed, Request};
use crate::key::Shown;
use crate::store::Store;

impl<S: Store> Running<S> {
    /// Undoes a grant to an owner that does not wait. If this fails, the grant soon ends by itself.
    pub(super) async fn disown(self: Arc<Self>, key: Arc<str>, place: String, claim: Duration) {
        let knows = |owner| self.events.knows(owner, &key);
        let mut call = self.call_within(claim);
        let undone = attempts!(call, |deadline, attempt| self
            .store
            .disown(&key, &place, &knows, deadline, attempt));
        if let Err(error) = undone {
            tracing::debug!(
                target: "dlock::store",
                "a grant of `{}` to somebody who does not wait for it any more stands until it \
                 ends: {error}",
                Shown(&key)
            );
        }
    }

    /// Forgets the holders whose leases have ended, by these answers to their renewals. They may
    /// have been told of the loss, and work on: a later grant by an old place is not for them.
    pub(super) fn forget_lost(
        &self,
        requests: &[Request],
        renewed: &[Result<Renewed, BackendError>],
    ) {
        if S::CLAIM.is_none() {
            return;
        }
        for (request, renewed) in requests.iter().zip(renewed) {
            if let Ok(Renewed::Gone) = renewed {
                self.events.holders().remove(request.owner);
            }
        }
    }

    /// Extends the lease of a holder that is granted its own lock. It has no effect if the lock has
    /// gone back meanwhile. If it fails and the lock is lost, the holder's own renewals report
    /// that.
    pub(super) async fn answer(self: Arc<Self>, holder: Request, claim: Duration) {
        let holder = [holder];
        let renewed = outlined(self.renew_within(&holder, claim)).await;
        self.forget_lost(&holder, &renewed);
        if let Some(Err(error)) = renewed.first() {
            tracing::debug!(
                target: "dlock::store",
                "lock `{}` was granted to its holder once more, which was not answered: {error}",
                Shown(&holder[0].key)
            );
        }
    }
}
