//! What a request that waits has heard from the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{BackendError, Owner};
use crate::clock::Clock;
use crate::observe;

/// What a request has heard from the store. Whoever waits for its answer asks it
/// whether the lock was held by somebody, or the store was not there.
#[derive(Clone, Debug)]
pub struct Progress {
    begun: Instant,
    clock: Clock,
    heard: Arc<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    /// When the store last said that somebody holds the lock: in nanoseconds
    /// after the request was begun, and one. 0 if it never has.
    last: AtomicU64,
    /// When the store is asked, in nanoseconds after the request was begun.
    asked: AtomicU64,
    /// As whom the store is asked by now, if not as the request's own owner.
    asker: Mutex<Option<Owner>>,
}

impl Heard {
    fn asker(&self) -> MutexGuard<'_, Option<Owner>> {
        self.asker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store is not asked yet.
const NOT_YET: u64 = u64::MAX;

impl Progress {
    pub(super) fn begin(clock: Clock) -> Self {
        Self {
            begun: clock.now(),
            clock,
            heard: Arc::default(),
        }
    }

    pub(super) fn held(&self) {
        if self
            .heard
            .last
            .fetch_max(self.nanos() + 1, Ordering::AcqRel)
            == 0
        {
            observe::held_by_somebody();
        }
    }

    /// The request waits before it asks the store.
    pub(crate) fn asks_later(&self) {
        self.heard.asked.store(NOT_YET, Ordering::Release);
    }

    pub(crate) fn asks_now(&self) {
        self.heard.asked.store(self.nanos(), Ordering::Release);
    }

    pub(super) fn asks_as(&self, owner: Owner) {
        *self.heard.asker() = Some(owner);
    }

    pub(super) fn asker(&self) -> Option<Owner> {
        *self.heard.asker()
    }

    fn nanos(&self) -> u64 {
        let since_begun = self.clock.now().saturating_duration_since(self.begun);
        u64::try_from(since_begun.as_nanos()).unwrap_or(NOT_YET - 1)
    }

    pub(crate) fn begun(&self) -> Instant {
        self.begun
    }

    /// When the store was asked, if it was.
    pub(crate) fn asked(&self) -> Option<Instant> {
        match self.heard.asked.load(Ordering::Acquire) {
            NOT_YET => None,
            nanos => Some(self.begun + Duration::from_nanos(nanos)),
        }
    }

    /// Whether the store has ever said that somebody holds the lock.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard.last.load(Ordering::Acquire) > 0
    }

    /// Whether it has said so at `since` or later.
    pub(crate) fn heard_since(&self, since: Instant) -> bool {
        match self.heard.last.load(Ordering::Acquire) {
            0 => false,
            last => self.begun + Duration::from_nanos(last - 1) >= since,
        }
    }

    /// Why the store counts as unavailable for a caller who has waited since
    /// `since`, within a limit of `waited`, if it does.
    pub(crate) fn outage(
        &self,
        since: Instant,
        waited: Duration,
        now: Instant,
    ) -> Option<BackendError> {
        // What was heard before the caller came says nothing of now. And if the
        // store was asked just now, for somebody who went before the caller,
        // nothing can be said of it.
        let asked = self.asked()?.max(since);
        if self.heard_since(since) {
            return None;
        }
        Self::silence(asked, waited, now)
    }

    /// The same for what was asked then and is not answered yet.
    pub(crate) fn silence(asked: Instant, waited: Duration, now: Instant) -> Option<BackendError> {
        if now.saturating_duration_since(asked) < waited / 2 {
            return None;
        }
        Some(BackendError::unavailable(format!(
            "it has not answered within {waited:?}; check that it runs and can be reached"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_was_heard_before_a_call_began_says_nothing_of_the_store() {
        let second = Duration::from_secs(1);
        let progress = Progress::begin(Clock::Tokio);
        progress.held();
        let outage = |since: Instant| progress.outage(since, second, Instant::now());
        let early = Instant::now();
        tokio::time::advance(10 * second).await;
        let late = Instant::now();
        tokio::time::advance(second).await;
        assert!(outage(early).is_none(), "heard at the same moment");
        assert!(outage(late).is_some(), "heard ten seconds before it began");
        progress.held();
        assert!(outage(late).is_none(), "heard since");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_was_not_asked_has_not_been_silent() {
        let second = Duration::from_secs(1);
        let progress = Progress::begin(Clock::Tokio);
        let begun = progress.begun();
        let outage = || progress.outage(begun, second, Instant::now());
        progress.asks_later();
        tokio::time::advance(10 * second).await;
        assert!(outage().is_none());
        progress.asks_now();
        assert!(outage().is_none());
        tokio::time::advance(second).await;
        assert!(outage().is_some());
    }
}
