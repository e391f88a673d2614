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

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Running;
use super::call::Call;
use super::lease_table::LeaseTable;
use crate::backend::{BackendError, Request};
use crate::key::Shown;
use crate::store::{Due, Failure, Store};

impl<S: Store> Running<S> {
    /// Until the engine is told to stop.
    pub(super) async fn see_to_unexpected(self: Arc<Self>, claim: Duration) {
        let work = async {
            let (mut undone, mut answered) = (FuturesUnordered::new(), FuturesUnordered::new());
            loop {
                tokio::select! {
                    grants = self.events.unexpected().next() => {
                        let strangers = grants.strangers.into_iter();
                        undone.extend(strangers.map(|(key, places)| self.disown(key, places, claim)));
                        let holders = grants.holders.into_iter();
                        answered.extend(holders.map(|holder| self.answer(holder, claim)));
                    }
                    Some(()) = undone.next() => {}
                    Some(()) = answered.next() => {}
                }
            }
        };
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => {}
            () = work => {}
        }
    }

    /// Without success, the grant ends by itself soon.
    async fn disown(&self, key: Arc<str>, granted: Vec<String>, claim: Duration) {
        let knows = |owner| self.events.knows(owner, &key);
        let mut call = Call::of_at_most(self, claim);
        let undone: Result<(), BackendError> = async {
            loop {
                let deadline = call.begin()?;
                let attempt = &mut call.attempt;
                let disowning = self.store.disown(&key, &granted, &knows, deadline, attempt);
                match disowning.await {
                    Ok(()) => return Ok(()),
                    Err(failure) => call.failed(failure).await?,
                }
            }
        }
        .await;
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
    /// if the lock has gone back meanwhile.
    async fn answer(&self, holder: Request, claim: Duration) {
        let mut record = None;
        if LeaseTable::<S::Record>::KEEPS {
            record = self.table.record(holder.owner).or_else(S::forgotten);
            if record.is_none() {
                return;
            }
        }
        let mut due = [Due {
            request: holder,
            record,
        }];
        let mut call = Call::of_at_most(self, claim);
        let renewed: Result<(), BackendError> = async {
            loop {
                let deadline = call.begin()?;
                let renewed = self.store.renew(&mut due, deadline, &mut call.attempt);
                let answer = renewed.await.pop();
                match answer.unwrap_or_else(|| Err(Failure::not_sent())) {
                    Ok(_) => return Ok(()),
                    Err(failure) => call.failed(failure).await?,
                }
            }
        }
        .await;
        let [Due { request, record }] = due;
        if let Some(record) = record {
            self.table.update(&request, record, self.time.now());
        }
        // Who loses the lock by that is told by its own renewals.
        if let Err(error) = renewed {
            tracing::debug!(
                target: "dlock::store",
                "lock `{}` was granted to its holder once more, which was not answered: {error}",
                Shown(&request.key)
            );
        }
    }
}
