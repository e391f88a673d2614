//! How long a request waits for an answer, from round to round.

use std::sync::Arc;

use tokio::time::Instant;

use super::core::Core;

/// How long a request waits for an answer.
pub(super) struct Patience {
    core: Arc<Core>,
    since: Instant,
    deadline: Instant,
    round: u32,
}

impl Patience {
    pub(super) fn new(core: &Arc<Core>) -> Self {
        let since = Instant::now();
        Self {
            since,
            deadline: since + core.members.settings.request_timeout,
            core: Arc::clone(core),
            round: 0,
        }
    }

    pub(super) fn round(&self) -> u32 {
        self.round
    }

    /// The place was lost: another one is asked for.
    pub(super) fn next_round(&mut self) {
        self.round += 1;
        self.renew();
    }

    /// After a time of waiting, the members are asked again. They have until
    /// their silence has lasted for the request timeout, counted from when they
    /// were last heard of; but long enough for another one to answer.
    pub(super) fn renew(&mut self) {
        let timeout = self.core.members.settings.request_timeout;
        self.since = self.core.members.last_heard();
        self.deadline = (self.since + timeout).max(Instant::now() + timeout / 4);
    }

    pub(super) fn since(&self) -> Instant {
        self.since
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}
