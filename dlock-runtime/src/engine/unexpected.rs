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

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;

use super::Running;
use super::call::Call;
use super::lease_table::LeaseTable;
use crate::backend::{BackendError, Owner, Request};
use crate::key::Shown;
use crate::store::{Due, Failure, Store};

/// Such grants, until somebody sees to them.
#[derive(Default)]
pub(super) struct Unexpected {
    pub(super) holders: Holders,
    grants: Mutex<Grants>,
    come: Notify,
}

#[derive(Default)]
struct Grants {
    /// The places of owners who are unknown here, by key.
    strangers: HashMap<Arc<str>, Vec<String>>,
    /// Those who hold the lock that they were granted.
    holders: Vec<Request>,
}

impl Unexpected {
    /// This owner, who does not wait, was granted the lock by its place.
    pub(super) fn note(&self, owner: Owner, key: &str, place: &str) {
        let mut grants = self.grants();
        // A holder is entered before it leaves the waiters: it is not missed.
        match self.holders.get(owner) {
            Some(request) => grants.holders.push(request),
            None => {
                let places = grants.strangers.entry(key.into()).or_default();
                places.push(place.to_owned());
            }
        }
        drop(grants);
        self.come.notify_one();
    }

    async fn next(&self) -> Grants {
        loop {
            let grants = std::mem::take(&mut *self.grants());
            if !(grants.strangers.is_empty() && grants.holders.is_empty()) {
                return grants;
            }
            self.come.notified().await;
        }
    }

    fn grants(&self) -> MutexGuard<'_, Grants> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those who wait no more because they have what they waited for. Who never waited
/// has no place anywhere, and is not entered: that would cost each section.
#[derive(Default)]
pub(super) struct Holders {
    /// Spares every release a lock where nobody has to wait.
    any: AtomicBool,
    requests: Mutex<HashMap<Owner, Request>>,
}

impl Holders {
    pub(super) fn enter(&self, request: &Request) {
        let mut requests = self.requests();
        requests.insert(request.owner, request.clone());
        self.any.store(true, Ordering::Release);
    }

    /// This owner is about to give its lock back.
    pub(super) fn leave(&self, owner: Owner) {
        if self.any.load(Ordering::Acquire) {
            let mut requests = self.requests();
            requests.remove(&owner);
            self.any.store(!requests.is_empty(), Ordering::Release);
        }
    }

    pub(super) fn get(&self, owner: Owner) -> Option<Request> {
        self.requests().get(&owner).cloned()
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<Owner, Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
