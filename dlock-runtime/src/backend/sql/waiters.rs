//! Who in this process waits for what, and what wakes them.
//!
//! A waiter is woken to ask the database again, never told that it has the lock.
//! So a lost message costs time only, a wrong one costs a question, and every
//! cause of waking is the same to the waiter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The waiters of a backend.
#[derive(Default)]
pub(super) struct Waiters {
    state: Mutex<HashMap<Arc<str>, Waiter>>,
    /// Somebody has come to wait.
    arrival: Notify,
}

struct Waiter {
    key: Arc<str>,
    wake: Arc<Notify>,
    /// When it last had cause to hope.
    since: Instant,
    /// It has a place in the queue, as far as is known.
    queued: bool,
}

/// A waiter's place in the table, which it leaves when this is dropped.
pub(super) struct Waiting<'a> {
    waiters: &'a Waiters,
    owner: Arc<str>,
    wake: Arc<Notify>,
}

impl Waiters {
    /// Enters a waiter, before it first asks for a place in the queue.
    pub(super) fn enter(&self, key: &Arc<str>, owner: &Arc<str>) -> Waiting<'_> {
        let wake = Arc::new(Notify::new());
        let waiter = Waiter {
            key: Arc::clone(key),
            wake: Arc::clone(&wake),
            since: Instant::now(),
            queued: false,
        };
        self.state().insert(Arc::clone(owner), waiter);
        self.arrival.notify_one();
        Waiting {
            waiters: self,
            owner: Arc::clone(owner),
            wake,
        }
    }

    /// This waiter should ask.
    pub(super) fn wake(&self, owner: &str) {
        if let Some(waiter) = self.state().get_mut(owner) {
            waiter.ask();
        }
    }

    /// Whoever waits for this key should ask.
    pub(super) fn wake_key(&self, key: &str) {
        let mut state = self.state();
        for waiter in state.values_mut().filter(|waiter| *waiter.key == *key) {
            waiter.ask();
        }
    }

    /// Messages may have been missed, or places lost: everybody asks again.
    pub(super) fn wake_all(&self) {
        self.state().values_mut().for_each(Waiter::ask);
    }

    /// Waits until somebody comes, if nobody came since it was last asked.
    pub(super) async fn arrival(&self) {
        self.arrival.notified().await;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state().is_empty()
    }

    /// Those who have a place in a queue.
    pub(super) fn queued(&self) -> Vec<Arc<str>> {
        let state = self.state();
        let queued = state.iter().filter(|(_, waiter)| waiter.queued);
        queued.map(|(owner, _)| Arc::clone(owner)).collect()
    }

    pub(super) fn knows(&self, owner: &str) -> bool {
        self.state().contains_key(owner)
    }

    /// How long the one has waited that came, or was woken, last.
    pub(super) fn calm(&self) -> Duration {
        let state = self.state();
        let last = state.values().map(|waiter| waiter.since).max();
        last.map_or(Duration::ZERO, |last| last.elapsed())
    }

    fn state(&self) -> MutexGuard<'_, HashMap<Arc<str>, Waiter>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    fn ask(&mut self) {
        self.since = Instant::now();
        self.wake.notify_one();
    }
}

impl Waiting<'_> {
    /// The database has it in the queue.
    pub(super) fn is_queued(&self) {
        if let Some(waiter) = self.waiters.state().get_mut(&self.owner) {
            waiter.queued = true;
        }
    }

    /// Waits until there is cause to ask the database again.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.waiters.state().remove(&self.owner);
    }
}
