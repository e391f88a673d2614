//! What the voters say of the locks that are waited for.
//!
//! A voter that is given its vote back says so on the lock's own channel, to
//! which a process listens while somebody in it waits. So there is no queue, no
//! key and nothing to clean up: a process that dies hears no more.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tokio::sync::watch;

use super::voter::VoterSet;
use crate::engine::events::Listener;
use crate::sync::Mutex;
use crate::tables::HashMap;

/// The keys that are listened to.
#[derive(Default)]
pub(super) struct Subscriptions {
    keys: Mutex<HashMap<Arc<str>, Entry>>,
    /// Changes with the keys, and when a voter is not listened to any more.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Entry {
    heard: Arc<watch::Sender<Heard>>,
    subscribers: usize,
}

/// What was heard of a key.
#[derive(Default)]
struct Heard {
    /// The voters who are listened to.
    listening: VoterSet,
    /// So many messages.
    count: u64,
    /// By voter: which was its last.
    last: BTreeMap<usize, u64>,
}

/// One who wants to hear of a key, until this is dropped.
pub(super) struct Subscription {
    subscriptions: Arc<Subscriptions>,
    key: Arc<str>,
    heard: Arc<watch::Sender<Heard>>,
}

impl Subscriptions {
    pub(super) fn subscribe(self: &Arc<Self>, key: &Arc<str>) -> Subscription {
        let mut keys = self.keys.lock();
        let entry = keys.entry(Arc::clone(key)).or_default();
        entry.subscribers += 1;
        let (heard, is_first) = (Arc::clone(&entry.heard), entry.subscribers == 1);
        drop(keys);
        if is_first {
            self.changed.send_replace(());
        }
        Subscription {
            subscriptions: Arc::clone(self),
            key: Arc::clone(key),
            heard,
        }
    }

    pub(super) fn wanted(&self) -> HashSet<Arc<str>> {
        self.keys.lock().keys().cloned().collect()
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// A voter is listened to, for these keys.
    pub(super) fn listens(&self, voter: usize, keys: &HashSet<Arc<str>>) {
        let wanted = self.keys.lock();
        for entry in keys.iter().filter_map(|key| wanted.get(key)) {
            entry
                .heard
                .send_if_modified(|heard| heard.listening.insert(voter));
        }
    }
}

impl Subscription {
    /// So many messages were heard by now.
    pub(super) fn count(&self) -> u64 {
        self.heard.borrow().count
    }

    /// Waits until so many voters are listened to.
    pub(super) async fn listened(&self, voters: usize) {
        let enough = |heard: &Heard| heard.listening.len() >= voters;
        // The sender is this one's own.
        let _ = self.heard.subscribe().wait_for(enough).await;
    }

    /// Waits until so many voters have been given a vote back, behind so many messages.
    pub(super) async fn freed(&self, since: u64, voters: usize) {
        let enough = |heard: &Heard| {
            let freed = heard.last.values().filter(|&&last| last > since);
            freed.count() >= voters
        };
        let _ = self.heard.subscribe().wait_for(enough).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut keys = self.subscriptions.keys.lock();
        let Some(entry) = keys.get_mut(&self.key) else {
            return;
        };
        entry.subscribers -= 1;
        if entry.subscribers == 0 {
            keys.remove(&self.key);
            drop(keys);
            self.subscriptions.changed.send_replace(());
        }
    }
}

/// Hears what one voter says.
pub(super) struct Ears {
    pub(super) voter: usize,
    pub(super) subscriptions: Arc<Subscriptions>,
}

impl Listener for Ears {
    fn freed(&self, key: &str) {
        if let Some(entry) = self.subscriptions.keys.lock().get(key) {
            entry.heard.send_modify(|heard| {
                heard.count += 1;
                heard.last.insert(self.voter, heard.count);
            });
        }
    }

    fn missed(&self) {
        for Entry { heard, .. } in self.subscriptions.keys.lock().values() {
            heard.send_if_modified(|heard| heard.listening.remove(&self.voter));
        }
        self.subscriptions.changed.send_replace(());
    }
}
