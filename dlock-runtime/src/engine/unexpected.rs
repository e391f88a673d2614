//! Grants to owners of this process who do not wait, until somebody sees to them
//! ([`disown`](super::disown)).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::backend::{Owner, Request};

#[derive(Default)]
pub(super) struct Unexpected {
    pub(super) holders: Holders,
    grants: Mutex<Grants>,
    come: Notify,
}

#[derive(Default)]
pub(super) struct Grants {
    /// The places of owners who are unknown here, by key.
    pub(super) strangers: HashMap<Arc<str>, Vec<String>>,
    /// Those who hold the lock that they were granted.
    pub(super) holders: Vec<Request>,
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

    pub(super) async fn next(&self) -> Grants {
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
