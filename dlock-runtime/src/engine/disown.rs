//! Grants to owners of this process who do not wait: undone, or answered.
//!
//! A server that was cut off may serve for a moment after its replica has heard
//! the last of it. When that replica takes over, its queues hold waiters who have
//! had their lock long ago, and it would grant to them one after the other, for as
//! long as a grant waits for an answer. Their process is alive and is told of the
//! first such grant: it then has all the places undone that it has in that queue
//! and does not know, the grant with them. So who was served long ago costs those
//! who wait two round trips for each process, and it costs nothing to look for them.
//!
//! Or the owner holds the lock, by the word of the server before. Then the grant is
//! what keeps it: a renewal answers it at once, as the holder's next one may come
//! too late for that.

use std::sync::Arc;
use std::time::Duration;

use super::Running;
use super::call::attempts;
use crate::backend::Request;
use crate::key::Shown;
use crate::store::Store;

impl<S: Store> Running<S> {
    /// Without success, the grant ends by itself soon.
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

    /// Extends the lease of a holder that is granted its own lock. It changes nothing
    /// if the lock has gone back meanwhile; and who loses the lock by a failure is told
    /// by its own renewals.
    pub(super) async fn answer(self: Arc<Self>, holder: Request, claim: Duration) {
        let holder = [holder];
        let renewed = self.renew_within(&holder, claim).await;
        if let Some(Err(error)) = renewed.first() {
            tracing::debug!(
                target: "dlock::store",
                "lock `{}` was granted to its holder once more, which was not answered: {error}",
                Shown(&holder[0].key)
            );
        }
    }
}
