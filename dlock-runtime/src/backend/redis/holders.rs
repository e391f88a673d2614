//! Holders who have waited for their lock.
//!
//! The master that granted it may be lost, and the queue of the next one hold
//! their place still. It then grants to them what they hold. Who never waited has
//! no place anywhere, and is not entered here: that would cost each section.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backend::{Owner, Request};

#[derive(Default)]
pub(super) struct Holders {
    /// Spares every release a lock where nobody has to wait.
    any: AtomicBool,
    requests: Mutex<HashMap<Owner, Request>>,
}

impl Holders {
    /// This request has waited, and holds the lock from now on.
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
