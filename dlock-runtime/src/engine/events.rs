//! The messages that a store sends unasked.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::lease_table::MostlyEmptyTable;
use super::time::Time;
use super::waiters::Waiters;
use crate::backend::{Owner, Request};

/// A lease of etcd or a session: several grants end together with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(pub u64);

/// Where a store reports its messages. Cheap to clone.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    waiters: Waiters,
    /// Requests that waited and were granted, if the store may grant a lock to an owner that no
    /// longer waits ([`CLAIM`](crate::store::Store::CLAIM)). A request that never waited has no
    /// place in any queue and is not recorded here, since that would cost time in every section.
    holders: MostlyEmptyTable<Request>,
    time: Time,
    began: Instant,
    /// When the last answered question was sent, in microseconds from `began`.
    last_response_at: AtomicU64,
    /// When others were last told that this process is alive; 0 if not since its last farewell.
    known: AtomicU64,
    /// When others were last told that this process need not be alive. That may have taken back a
    /// beat that was sent before.
    farewell: AtomicU64,
    /// Others take this process for dead after this long without a beat.
    dead_after: Duration,
    listener: OnceLock<Box<dyn Listener>>,
}

/// Receives what the store reports, in addition to the waiters.
pub(crate) trait Listener: Send + Sync {
    fn freed(&self, _key: &str) {}

    /// The owner of this name has given the lock back.
    fn given_back(&self, _key: &str, _owner: &str) {}

    /// This request has given the lock back, and this many processes were notified.
    fn notified(&self, _request: &Request, _processes: usize) {}

    /// Messages may have been missed.
    fn missed(&self) {}

    /// Returns how many held locks have ended with the scope.
    fn ended(&self, _scope: Scope) -> usize {
        0
    }

    /// An owner that does not wait was granted the lock by its place. `holder` is its request if it
    /// may hold the lock already.
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
            holders: MostlyEmptyTable::default(),
            began: time.now(),
            time,
            last_response_at: AtomicU64::new(0),
            known: AtomicU64::new(0),
            farewell: AtomicU64::new(0),
            dead_after,
            listener: OnceLock::new(),
        }))
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.0.waiters
    }

    pub(super) fn time(&self) -> &Time {
        &self.0.time
    }

    pub(super) fn holders(&self) -> &MostlyEmptyTable<Request> {
        &self.0.holders
    }

    /// The store reports that this owner was granted the lock.
    pub fn wake(&self, owner: Owner, key: &str) {
        self.0.waiters.wake(owner, key);
    }

    /// The owner was granted the lock by its place in the queue. If the owner does not wait, the
    /// listener deals with the grant.
    pub fn granted(&self, owner: Owner, key: &str, place: &str) {
        if !self.0.waiters.wake(owner, key) {
            // A holder is recorded before it leaves the waiters, so it is not missed.
            self.tell(|listener| listener.granted(key, place, self.0.holders.get(owner)));
        }
    }

    /// Whether this owner waits, has what it waited for, or is being given back. An owner is
    /// entered before it asks for a place, so an owner that has a place but is unknown has gone for
    /// good.
    pub fn knows(&self, owner: Owner, key: &str) -> bool {
        self.0.waiters.knows(owner, key) || self.0.holders.get(owner).is_some()
    }

    /// A lock is free, or may be.
    pub fn freed(&self, key: &str) {
        self.0.waiters.wake_key(key);
        self.tell(|listener| listener.freed(key));
    }

    /// A lock is free, since the owner of this name has given it back.
    pub(crate) fn freed_by(&self, owner: &str, key: &str) {
        self.tell(|listener| listener.given_back(key, owner));
        self.freed(key);
    }

    /// This request has given the lock back, and this many processes were notified.
    pub(crate) fn notified(&self, request: &Request, processes: usize) {
        self.tell(|listener| listener.notified(request, processes));
    }

    /// This waiter may get the lock now.
    pub(crate) fn freed_for(&self, owner: Owner, key: &str) {
        self.0.waiters.wake(owner, key);
        self.tell(|listener| listener.freed(key));
    }

    /// Messages may have been missed, so every waiter asks again.
    pub fn missed(&self) {
        self.0.waiters.wake_all();
        self.tell(|listener| listener.missed());
    }

    fn tell(&self, what: impl FnOnce(&dyn Listener)) {
        if let Some(listener) = self.0.listener.get() {
            what(&**listener);
        }
    }

    pub(crate) fn set_listener(&self, listener: impl Listener + 'static) {
        let _ = self.0.listener.set(Box::new(listener));
    }

    /// A lease or session has ended, with all locks held by it. Returns how many there were.
    pub fn ended(&self, scope: Scope) -> usize {
        // There are no leases before the listener is set.
        let listener = self.0.listener.get();
        listener.map_or(0, |listener| listener.ended(scope))
    }

    /// The store has answered a question that was sent at `sent_at`.
    pub fn answered(&self, sent_at: Instant) {
        self.0
            .last_response_at
            .fetch_max(self.stamp(sent_at), Ordering::Relaxed);
    }

    pub(super) fn last_response_at(&self) -> Instant {
        self.0.began + Duration::from_micros(self.0.last_response_at.load(Ordering::Relaxed))
    }

    /// A message sent at `sent_at` told others that this process is alive. If they may have taken
    /// it for dead before, the waiters ask again. Three quarters of that time count as too long
    /// already, because the message also takes time to reach the store.
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

    /// Forgets the last beat, so that the next waiter sends one. Returns whether there was one.
    pub(super) fn forget_beat(&self) -> bool {
        self.0.known.swap(0, Ordering::Relaxed) != 0
    }

    /// Others were told that this process need not be alive. A waiter that came meanwhile may have
    /// been passed over as dead, so all waiters ask again.
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
