//! Receives messages about grants, and about votes that are given back.

use redis::{PushInfo, PushKind, Value};

use super::names::Keyspace;
use crate::engine::events::Events;

/// Passes on the messages that come over a connection.
pub(super) struct Listener {
    pub(super) space: Keyspace,
    pub(super) events: Events,
    /// The channel to which each new connection subscribes. Subscriptions to other channels come
    /// and go with the waiters.
    pub(super) channel: Option<String>,
}

impl Listener {
    pub(super) fn hear(&self, push: &PushInfo) {
        let (PushKind::Message | PushKind::SMessage, [channel, message]) =
            (&push.kind, &push.data[..])
        else {
            return;
        };
        let (Some(channel), Some(message)) = (text(channel), text(message)) else {
            return;
        };
        if let Some((entry, owner, key)) = self.space.parse_wake(message) {
            self.events.granted(owner, key, entry);
        } else {
            let (channel, owner) = self.space.heard_by(channel);
            for key in self.space.freed_keys(channel) {
                match owner {
                    Some(owner) => self.events.wake(owner, key),
                    #[cfg(feature = "quorum")]
                    None => self.events.freed_by(message, key),
                    #[cfg(not(feature = "quorum"))]
                    None => self.events.freed(key),
                }
            }
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}
