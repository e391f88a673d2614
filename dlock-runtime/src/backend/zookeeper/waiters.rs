//! Those who wait, each for the end of another's node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::session::Session;
use crate::backend::Owner;

#[derive(Default)]
pub(super) struct Waiters(Mutex<HashMap<Owner, Waiter>>);

struct Waiter {
    session: Arc<Session>,
    /// The node that it waits for the end of.
    before: String,
    woken: Arc<Notify>,
}

/// An entry among those who wait, until it is dropped.
pub(super) struct Waiting<'w> {
    waiters: &'w Waiters,
    owner: Owner,
    woken: Arc<Notify>,
}

impl Waiters {
    pub(super) fn enter(&self, owner: Owner, session: &Arc<Session>, before: &str) -> Waiting<'_> {
        let woken = Arc::new(Notify::new());
        let waiter = Waiter {
            session: Arc::clone(session),
            before: before.to_owned(),
            woken: Arc::clone(&woken),
        };
        self.waiters().insert(owner, waiter);
        Waiting {
            waiters: self,
            owner,
            woken,
        }
    }

    /// The nodes that are waited for in this session, and whom to wake.
    pub(super) fn all_of(&self, session: &Arc<Session>) -> Vec<(String, Arc<Notify>)> {
        let waiters = self.waiters();
        let waiters = waiters
            .values()
            .filter(|waiter| Arc::ptr_eq(&waiter.session, session));
        waiters
            .map(|waiter| (waiter.before.clone(), Arc::clone(&waiter.woken)))
            .collect()
    }

    fn waiters(&self) -> MutexGuard<'_, HashMap<Owner, Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    /// Resolves when the node is gone and nobody has said so.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.waiters().remove(&self.owner);
    }
}
