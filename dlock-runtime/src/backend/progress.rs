//! What the store has answered to a waiting request.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::numbers::PermitNumbers;
use super::{BackendError, Owner};
use crate::clock::Clock;
use crate::observe;
use crate::sync::Mutex;

/// What the store has answered to a request. A caller that waits for the request reads from this
/// whether somebody else held the lock or the store did not answer.
#[derive(Clone, Debug)]
pub struct Progress {
    clock: Clock,
    heard: Arc<Mutex<Heard>>,
}

#[derive(Debug)]
struct Heard {
    /// When the last question was sent that the store answered with "somebody holds the lock".
    held: Option<Instant>,
    /// When the store was asked; `None` if it has not been asked yet.
    asked: Option<Instant>,
    /// The store was asked again after it last said that somebody holds the lock.
    asks_again: bool,
    /// The owner under which the store is asked now, if it is not the request's own.
    current_owner: Option<Owner>,
    /// When a quorum granted the lock, in unix ms by this host's clock.
    held_since: Option<NonZeroU64>,
    /// Where to report callers that go by another number of permits.
    numbers: Option<Arc<PermitNumbers>>,
}

impl Progress {
    pub(super) fn begin(clock: Clock) -> Self {
        let begun = clock.now();
        Self {
            clock,
            heard: Arc::new(Mutex::new(Heard {
                held: None,
                asked: Some(begun),
                asks_again: false,
                current_owner: None,
                held_since: None,
                numbers: None,
            })),
        }
    }

    pub(super) fn held(&self) {
        self.held_when(self.clock.now());
    }

    /// An answer to a question that was sent at `asked` says that the lock is held. The answer
    /// may have waited unread for a long time.
    pub(super) fn held_when(&self, asked: Instant) {
        let before = {
            let mut heard = self.heard.lock();
            let before = heard.held;
            heard.held = before.max(Some(asked));
            heard.asks_again = false;
            before
        };
        if before.is_none() {
            observe::held_by_somebody();
        }
    }

    /// The request waits before it asks the store.
    pub(crate) fn asks_later(&self) {
        self.heard.lock().asked = None;
    }

    pub(crate) fn asks_now(&self) {
        self.heard.lock().asked = Some(self.clock.now());
    }

    /// The request was told that somebody holds the lock, and now has cause to ask again.
    pub(crate) fn asks_again(&self) {
        let mut heard = self.heard.lock();
        if heard.held.is_some() {
            heard.asked = Some(self.clock.now());
            heard.asks_again = true;
        }
    }

    pub(super) fn asks_as(&self, owner: Owner) {
        self.heard.lock().current_owner = Some(owner);
    }

    pub(super) fn current_owner(&self) -> Option<Owner> {
        self.heard.lock().current_owner
    }

    pub(super) fn held_since(&self) -> Option<u64> {
        self.heard.lock().held_since.map(NonZeroU64::get)
    }

    pub(super) fn holds_since(&self, ms: u64) {
        self.heard.lock().held_since = NonZeroU64::new(ms);
    }

    pub(super) fn tells(&self, numbers: &Arc<PermitNumbers>) {
        self.heard.lock().numbers = Some(Arc::clone(numbers));
    }

    pub(super) fn numbers(&self) -> Option<Arc<PermitNumbers>> {
        self.heard.lock().numbers.clone()
    }

    /// When the store was asked, if it was.
    pub(crate) fn asked(&self) -> Option<Instant> {
        self.heard.lock().asked
    }

    /// When the last question was sent that the store answered with "somebody holds the lock".
    pub(crate) fn heard(&self) -> Option<Instant> {
        self.heard.lock().held
    }

    /// Whether "held" is the store's last answer and it has not been asked again since.
    pub(crate) fn heard_last(&self) -> bool {
        let heard = self.heard.lock();
        heard.held.is_some() && !heard.asks_again
    }

    /// Whether the store said "held" at `since` or later.
    pub(crate) fn heard_since(&self, since: Instant) -> bool {
        self.heard().is_some_and(|held| held >= since)
    }

    /// The outage, if the store counts as unavailable for a caller that has waited since `since`,
    /// with the limit `waited`. `looked` is how long ago the caller made sure that the store was
    /// asked.
    pub(crate) fn outage(
        &self,
        since: Instant,
        looked: Duration,
        waited: Duration,
        now: Instant,
    ) -> Option<BackendError> {
        // An answer from before the caller came says nothing about now. If the store was asked
        // just now, for a request that came before the caller, nothing is known yet.
        let asked = self.asked()?.max(since);
        if self.heard_since(since) {
            return None;
        }
        Self::silence(asked, looked, waited, now)
    }

    /// Most of the time since a caller looked at the store: the timer of that look may have fired a
    /// little late.
    pub(crate) fn nearly(looked: Duration) -> Duration {
        looked - looked / 16
    }

    /// The outage, if the question that was sent at `asked` is still unanswered and is nearly as old
    /// as `looked`.
    pub(crate) fn silence(
        asked: Instant,
        looked: Duration,
        waited: Duration,
        now: Instant,
    ) -> Option<BackendError> {
        if now.saturating_duration_since(asked) < Self::nearly(looked) {
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
        let outage = |since: Instant| progress.outage(since, second / 2, second, Instant::now());
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
        let begun = Instant::now();
        let outage = || progress.outage(begun, second / 2, second, Instant::now());
        progress.asks_later();
        tokio::time::advance(10 * second).await;
        assert!(outage().is_none());
        progress.asks_now();
        assert!(outage().is_none());
        tokio::time::advance(second).await;
        assert!(outage().is_some());
    }
}
