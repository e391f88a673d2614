//! Commands that were given up and may be run yet.
//!
//! A command whose answer was lost may be run later than anything that is sent
//! after it over another connection, and would then take the lock for nobody.
//! So what gives it back is repeated until the ghost's ttl has passed, and from
//! then on until the server has answered twice: what it had received when it
//! answered the first time, it has run before the second.

use std::time::{Duration, Instant};

use super::clock::Deadline;

/// A command that may be run yet.
pub(super) struct Ghost {
    /// It is certain that there is none.
    none: bool,
    /// What it locks it has locked until then, if it was run in time.
    ends: Deadline,
    /// The server has answered a release since.
    answered: bool,
}

impl Ghost {
    pub(super) fn sent(at: Option<Instant>, dropped_at: Instant, ttl: Duration) -> Self {
        Self {
            none: at.is_none(),
            ends: Deadline::from(at.unwrap_or(dropped_at), ttl),
            answered: false,
        }
    }

    /// Whether a release that was answered just now was the last that is needed.
    pub(super) fn is_gone(&mut self) -> bool {
        let before = std::mem::replace(&mut self.answered, true);
        self.none || (before && self.has_ended())
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ends.has_passed()
    }

    /// So much later than now, but no later than its end if that is ahead.
    pub(super) fn before_its_end(&self, pause: Duration) -> Deadline {
        if self.has_ended() {
            Deadline::after(pause)
        } else {
            self.ends.within(pause)
        }
    }
}
