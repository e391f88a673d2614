//! What this process waits for in a cluster, and where it hears of that.
//!
//! A channel belongs to a slot as a key does, so there is one for each lock that
//! this process waits for, at the node that has the lock; it is subscribed to
//! before the waiter enters the queue, as the queue passes over who does not
//! listen. The subscription is kept for a while after the last waiter has gone:
//! a key that was waited for is waited for again as a rule.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::super::listener::Listener;
use super::super::names::Keyspace;
use super::super::values::Process;
use crate::engine::events::Events;
use crate::stores::address::Address;

/// How long a subscription outlives its last waiter.
const LINGERS: Duration = Duration::from_secs(3);

pub(super) const SPACE: Keyspace = Keyspace::Slots;

/// What this process listens to.
pub(crate) struct Subscriptions {
    pub(super) process: Process,
    events: Events,
    keys: Mutex<HashMap<Arc<str>, Channel>>,
    /// More of them are heard.
    heard: watch::Sender<()>,
    /// Changes with the keys, and when what was heard may not have been all.
    changes: watch::Sender<()>,
}

struct Channel {
    slot: u16,
    waiters: usize,
    idle_since: Instant,
    /// The node at which it is subscribed to.
    heard_at: Option<Arc<Address>>,
}

/// The channel of a key is listened to until this is dropped, and a little longer.
pub(crate) struct Subscription {
    subscriptions: Arc<Subscriptions>,
    key: Arc<str>,
}

impl Subscriptions {
    pub(crate) fn new(process: Process, events: Events) -> Arc<Self> {
        Arc::new(Self {
            process,
            events,
            keys: Mutex::default(),
            heard: watch::Sender::new(()),
            changes: watch::Sender::new(()),
        })
    }

    /// Hears what a node tells the waiters.
    pub(super) fn listener(self: &Arc<Self>, node: Arc<Address>) -> Listener {
        let subscriptions = Arc::clone(self);
        Listener {
            space: SPACE,
            events: self.events.clone(),
            channel: None,
            replaced: Some(Box::new(move || {
                for channel in subscriptions.keys().values_mut() {
                    channel.is_not_heard_at(&node);
                }
                subscriptions.changes.send_replace(());
            })),
        }
    }

    /// Whether grants of this lock would be heard of.
    pub(crate) fn hears(&self, key: &str) -> bool {
        let keys = self.keys();
        keys.get(key)
            .is_some_and(|channel| channel.heard_at.is_some())
    }

    pub(crate) fn subscribe(self: &Arc<Self>, key: &Arc<str>) -> Subscription {
        let mut keys = self.keys();
        let mut is_new = false;
        let channel = keys.entry(Arc::clone(key)).or_insert_with(|| {
            is_new = true;
            Channel {
                slot: SPACE.slot(key),
                waiters: 0,
                idle_since: Instant::now(),
                heard_at: None,
            }
        });
        channel.waiters += 1;
        drop(keys);
        if is_new {
            self.changes.send_replace(());
        }
        Subscription {
            subscriptions: Arc::clone(self),
            key: Arc::clone(key),
        }
    }

    /// Takes out what nobody has waited for for a while.
    pub(crate) fn sweep(&self) -> Vec<Arc<str>> {
        self.take_idle(LINGERS)
    }

    /// Takes out what nobody waits for.
    pub(crate) fn sweep_all(&self) -> Vec<Arc<str>> {
        self.take_idle(Duration::ZERO)
    }

    fn take_idle(&self, after: Duration) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        self.keys().retain(|key, channel| {
            let kept = channel.waiters > 0 || channel.idle_since.elapsed() < after;
            if !kept {
                gone.push(Arc::clone(key));
            }
            kept
        });
        if !gone.is_empty() {
            self.changes.send_replace(());
        }
        gone
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// The keys that are waited for whose slots are there.
    pub(super) fn of_slots(&self, is_there: impl Fn(u16) -> bool) -> HashSet<Arc<str>> {
        let keys = self.keys();
        let there = keys.iter().filter(|(_, channel)| is_there(channel.slot));
        there.map(|(key, _)| Arc::clone(key)).collect()
    }

    /// The channel of this key is about to be listened to no more at this node.
    pub(super) fn is_left(&self, key: &str, node: &Address) {
        if let Some(channel) = self.keys().get_mut(key) {
            channel.is_not_heard_at(node);
        }
    }

    /// The channels of these keys are listened to at this node, if `is_so` still holds:
    /// a node goes deaf under the same lock, after its connection is taken out. All
    /// of them, and not only those that are new there: one that was given up and is
    /// waited for again before its subscription has ended knows nothing of that.
    pub(super) fn are_heard<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k Arc<str>>,
        node: &Arc<Address>,
        is_so: impl FnOnce() -> bool,
    ) -> bool {
        let mut channels = self.keys();
        if !is_so() {
            return false;
        }
        for key in keys {
            if let Some(channel) = channels.get_mut(key) {
                channel.heard_at = Some(Arc::clone(node));
            }
        }
        drop(channels);
        self.heard.send_replace(());
        true
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Channel>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    fn is_not_heard_at(&mut self, node: &Address) {
        if self.heard_at.as_deref() == Some(node) {
            self.heard_at = None;
        }
    }
}

impl Subscription {
    /// Waits until grants are heard of.
    pub(crate) async fn is_heard(&self) {
        let mut heard = self.subscriptions.heard.subscribe();
        while !self.subscriptions.hears(&self.key) && heard.changed().await.is_ok() {}
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(channel) = self.subscriptions.keys().get_mut(&self.key) {
            channel.waiters -= 1;
            channel.idle_since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::time::Time;

    #[tokio::test]
    async fn a_key_that_is_waited_for_again_is_heard() {
        let time = Time::of_the_machine(tokio::runtime::Handle::current());
        let subscriptions =
            Subscriptions::new(Process::unique(), Events::new(time, Duration::from_secs(8)));
        let node = Arc::new(Address {
            host: "h".to_owned(),
            port: 1,
        });
        let key: Arc<str> = "key".into();
        for _ in 0..2 {
            let subscription = subscriptions.subscribe(&key);
            assert!(!subscriptions.hears(&key));
            assert!(!subscriptions.are_heard([&key], &node, || false));
            assert!(!subscriptions.hears(&key));
            assert!(subscriptions.are_heard([&key], &node, || true));
            assert!(subscriptions.hears(&key));
            drop(subscription);
            subscriptions.keys().remove(&key);
        }
    }
}
