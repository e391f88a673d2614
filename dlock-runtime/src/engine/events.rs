//! What a store says of its own accord.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::seldom::Seldom;
use super::time::Time;
use super::waiters::Waiters;
use crate::backend::{Owner, Request};

/// A lease of etcd's, or a session: what several grants end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(pub u64);

/// Where a store says it. Cheap to clone.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    waiters: Waiters,
    /// Those who wait no more because they have what they waited for. Who never waited
    /// has no place anywhere, and is not entered: that would cost each section.
    holders: Seldom<Request>,
    time: Time,
    began: Instant,
    /// When the store was last known to answer, in microseconds from `began`.
    last_response_at: AtomicU64,
    /// Others know since then that this process is alive; 0 if they do not.
    known: AtomicU64,
    /// When they had been told the last time that it need not be: what was sent before may
    /// have been taken back by that.
    farewell: AtomicU64,
    /// After so long without a beat they take it for dead.
    dead_after: Duration,
    listener: OnceLock<Box<dyn Listener>>,
}

/// Whoever hears what the store says besides those who wait.
pub(crate) trait Listener: Send + Sync {
    fn freed(&self, _key: &str) {}

    /// Messages may have been missed.
    fn missed(&self) {}

    /// How many were held with it.
    fn ended(&self, _scope: Scope) -> usize {
        0
    }

    /// An owner who does not wait was granted the lock by its place, one who holds it
    /// perhaps.
    fn granted(&self, _key: &str, _place: &str, _holder: Option<Request>) {}
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn new(time: Time, dead_after: Duration) -> Self {
        Self(Arc::new(Inner {
            waiters: Waiters::default(),
            holders: Seldom::default(),
            began: time.now(),
            time,
            last_response_at: AtomicU64::new(0),
            known: AtomicU64::new(0),
            farewell: AtomicU64::new(0),
            dead_after,
            listener: OnceLock::new(),
        }))
    }

    pub(super) fn waiters(&self) -> &Waiters {
        &self.0.waiters
    }

    pub(super) fn time(&self) -> &Time {
        &self.0.time
    }

    pub(super) fn holders(&self) -> &Seldom<Request> {
        &self.0.holders
    }

    /// This owner was granted the lock, the store says.
    pub fn wake(&self, owner: Owner, key: &str) {
        self.0.waiters.wake(owner, key);
    }

    /// This owner was granted the lock by its place in the queue. If it does not wait
    /// for it, that is seen to.
    pub fn granted(&self, owner: Owner, key: &str, place: &str) {
        if !self.0.waiters.wake(owner, key)
            && let Some(listener) = self.0.listener.get()
        {
            // A holder is entered before it leaves the waiters: it is not missed.
            listener.granted(key, place, self.0.holders.get(owner));
        }
    }

    /// Whether this owner waits, has what it waited for, or is being given back. It
    /// is entered before its place is asked for: who has a place and is unknown has
    /// gone for good.
    pub fn knows(&self, owner: Owner, key: &str) -> bool {
        self.0.waiters.knows(owner, key) || self.0.holders.get(owner).is_some()
    }

    /// Whether somebody waits for this lock, or asks for a place.
    #[cfg(feature = "redis")]
    pub(crate) fn waits(&self, key: &str) -> bool {
        self.0.waiters.has(key)
    }

    /// Whether this one does.
    #[cfg(feature = "redis")]
    pub(crate) fn is_waiting(&self, owner: Owner, key: &str) -> bool {
        self.0.waiters.is_waiting(owner, key)
    }

    /// Waits until nobody waits for a lock any more, for which somebody did. There is one
    /// who is told.
    #[cfg(feature = "redis")]
    pub(crate) async fn left(&self) {
        self.0.waiters.left().await;
    }

    /// A lock is free, or may be.
    pub fn freed(&self, key: &str) {
        self.0.waiters.wake_key(key);
        if let Some(listener) = self.0.listener.get() {
            listener.freed(key);
        }
    }

    /// There may be room for this one of those who wait for a lock.
    #[cfg(feature = "postgres")]
    pub(crate) fn freed_for(&self, owner: Owner, key: &str) {
        self.0.waiters.wake(owner, key);
        if let Some(listener) = self.0.listener.get() {
            listener.freed(key);
        }
    }

    /// Messages may have been missed: everybody asks again.
    pub fn missed(&self) {
        self.0.waiters.wake_all();
        if let Some(listener) = self.0.listener.get() {
            listener.missed();
        }
    }

    pub(crate) fn set_listener(&self, listener: impl Listener + 'static) {
        let _ = self.0.listener.set(Box::new(listener));
    }

    /// A lease or session has ended, with all that was held by it: how many locks.
    pub fn ended(&self, scope: Scope) -> usize {
        // Before there is anybody to tell, there are no leases.
        let listener = self.0.listener.get();
        listener.map_or(0, |listener| listener.ended(scope))
    }

    /// The store has answered a question that was sent then.
    pub fn answered(&self, sent_at: Instant) {
        self.0
            .last_response_at
            .fetch_max(self.stamp(sent_at), Ordering::Relaxed);
    }

    pub(super) fn last_response_at(&self) -> Instant {
        self.0.began + Duration::from_micros(self.0.last_response_at.load(Ordering::Relaxed))
    }

    /// Others were told by what was sent then that this process is alive. Those who
    /// wait ask again if it may have been taken for dead before: a part of the time
    /// for that is the way to the store.
    pub fn beats(&self, sent_at: Instant) {
        let stamp = self.stamp(sent_at).max(1);
        let before = self.0.known.fetch_max(stamp, Ordering::Relaxed);
        let gap = Duration::from_micros(stamp.saturating_sub(before));
        if before != 0 && gap >= self.0.dead_after * 3 / 4 {
            self.missed();
        }
    }

    pub(super) fn is_known(&self) -> bool {
        let known = self.0.known.load(Ordering::Relaxed);
        let since = self.0.began + Duration::from_micros(known);
        let counts = known > self.0.farewell.load(Ordering::Relaxed);
        counts && self.0.time.now().saturating_duration_since(since) < self.0.dead_after / 2
    }

    /// From now on they need not. Whether they were ever told.
    pub(super) fn forget_beat(&self) -> bool {
        self.0.known.swap(0, Ordering::Relaxed) != 0
    }

    /// They were told that it need not be. Who came in the meantime may have been passed
    /// over as dead.
    pub(super) fn said_farewell(&self) {
        let now = self.stamp(self.0.time.now());
        self.0.farewell.fetch_max(now, Ordering::Relaxed);
        self.missed();
    }

    fn stamp(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.0.began).as_micros();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}
