//! Hearing of grants, where one server has all keys: on the one channel of a process.

use super::connector::Listener;
use super::names::Keyspace;
use super::process::Process;
use crate::engine::events::Events;

/// Hears of grants to the waiters of this process, where one server has all keys.
pub(super) struct WakeUps {
    pub(super) process: Process,
    pub(super) events: Events,
}

impl Listener for WakeUps {
    fn channel(&self) -> Option<String> {
        Some(self.process.wake_channel())
    }

    fn hear(&self, _channel: &str, message: &str) {
        if let Some((entry, owner, key)) = Keyspace::Server.parse_wake(message) {
            self.events.granted(owner, key, entry);
        }
    }

    fn missed(&self) {
        self.events.missed();
    }
}

/// Hears of votes that are given back.
pub(super) struct VotesGivenBack {
    pub(super) space: Keyspace,
    pub(super) events: Events,
}

impl Listener for VotesGivenBack {
    /// They come and go with the waiters.
    fn channel(&self) -> Option<String> {
        None
    }

    fn hear(&self, channel: &str, _message: &str) {
        if let Some(key) = self.space.freed_key(channel) {
            self.events.freed(key);
        }
    }

    fn missed(&self) {
        self.events.missed();
    }
}
