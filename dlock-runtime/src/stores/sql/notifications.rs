//! How waiters hear that it is their turn.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::errors::Endpoint;
use crate::engine::events::Events;

/// How soon a waiter's turn is looked for where no messages come. The pause
/// grows with how long nothing has happened: those who wait for a lock that goes
/// from hand to hand look often, those who wait for a long job seldom.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

/// Where a database that sends messages tells of free locks.
#[cfg_attr(
    not(feature = "postgres"),
    allow(dead_code, reason = "the others tell nothing")
)]
pub struct Notifications {
    pub(super) endpoint: Endpoint,
    /// Whose they are.
    pub(super) process: String,
    pub(super) events: Events,
    pub(super) come: Arc<AtomicBool>,
}

impl Notifications {
    /// Whether they come through at present. Some may have been missed.
    #[cfg(feature = "postgres")]
    pub(super) fn come(&self, come: bool) {
        use std::sync::atomic::Ordering;
        self.come.store(come, Ordering::Relaxed);
        self.events.missed();
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.endpoint, f)
    }
}
