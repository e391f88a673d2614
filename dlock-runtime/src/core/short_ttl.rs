//! Warns about leases that one unanswered request may end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Warns once about a ttl that leaves no time for a second and a third attempt to renew: one
/// attempt without an answer may take a whole request timeout.
#[derive(Debug)]
pub(crate) struct ShortTtl {
    /// `None` for a store that always answers.
    request_timeout: Option<Duration>,
    /// The ttl of locks that give none. It has a warning of its own, so that a warning about
    /// another ttl is still printed.
    default: Duration,
    is_told: AtomicBool,
}

impl ShortTtl {
    pub(crate) fn new(request_timeout: Option<Duration>, default: Duration) -> Self {
        Self {
            request_timeout,
            default,
            is_told: AtomicBool::new(false),
        }
    }

    /// Checks the default ttl.
    pub(crate) fn look_at_default(&self) {
        self.tell(self.default, "all", || true);
    }

    /// Checks the ttl of the locks of this template.
    pub(crate) fn look(&self, ttl: Duration, template: &str) {
        if ttl != self.default {
            self.tell(ttl, template, || {
                !self.is_told.swap(true, Ordering::Relaxed)
            });
        }
    }

    fn tell(&self, ttl: Duration, template: &str, is_first: impl FnOnce() -> bool) {
        let Some(timeout) = self.request_timeout else {
            return;
        };
        let least = timeout.saturating_mul(3);
        if ttl >= least || !is_first() {
            return;
        }
        tracing::warn!(
            target: "dlock",
            template,
            "a ttl of {ttl:?} is shorter than three request timeouts of {timeout:?}: a short \
             outage may end the lease; give a ttl of {least:?}, or lower the request timeout \
             (DLOCK_REQUEST_TIMEOUT). This is told once"
        );
    }
}
