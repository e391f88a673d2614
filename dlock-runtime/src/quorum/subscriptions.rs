//! What the voters say of the locks that are waited for.
//!
//! A voter that is given its vote back says so on the lock's own channel, to
//! which a process listens while somebody in it waits. So there is no queue, no
//! key and nothing to clean up: a process that dies hears no more.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::voter::VoterSet;
use crate::engine::events::Listener;

/// The keys that are listened to.
pub(super) struct Subscriptions {
    voters: usize,
    keys: Mutex<HashMap<Arc<str>, Entry>>,
    /// Changes with the keys, and when a voter is not listened to any more.
    changed: watch::Sender<()>,
}

struct Entry {
    heard: Arc<watch::Sender<Heard>>,
    subscribers: usize,
}

/// What was heard of a key.
struct Heard {
    /// The voters who are listened to.
    listening: VoterSet,
    /// So many messages.
    count: u64,
    /// By voter: which was its last.
    last: Vec<u64>,
}

/// One who wants to hear of a key, until this is dropped.
pub(super) struct Subscription {
    subscriptions: Arc<Subscriptions>,
    key: Arc<str>,
    heard: Arc<watch::Sender<Heard>>,
}

/// A moment: what is heard later counts.
#[derive(Clone, Copy)]
pub(crate) struct Since(u64);

impl Subscriptions {
    pub(super) fn new(voters: usize) -> Arc<Self> {
        Arc::new(Self {
            voters,
            keys: Mutex::default(),
            changed: watch::Sender::new(()),
        })
    }

    pub(super) fn subscribe(self: &Arc<Self>, key: &Arc<str>) -> Subscription {
        let mut keys = self.keys();
        let entry = keys.entry(Arc::clone(key)).or_insert_with(|| Entry {
            heard: Arc::new(watch::Sender::new(Heard {
                listening: VoterSet::default(),
                count: 0,
                last: vec![0; self.voters],
            })),
            subscribers: 0,
        });
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
        self.keys().keys().cloned().collect()
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// A voter is listened to, for these keys.
    pub(super) fn listens(&self, voter: usize, keys: &HashSet<Arc<str>>) {
        let wanted = self.keys();
        for entry in keys.iter().filter_map(|key| wanted.get(key)) {
            entry.heard.send_if_modified(|heard| {
                let before = heard.listening.len();
                heard.listening.insert(voter);
                heard.listening.len() > before
            });
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashMap<Arc<str>, Entry>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    pub(super) fn now(&self) -> Since {
        Since(self.heard.borrow().count)
    }

    /// Waits until so many voters are listened to.
    pub(super) async fn listened(&self, voters: usize) {
        let enough = |heard: &Heard| heard.listening.len() >= voters;
        // The sender is this one's own.
        let _ = self.heard.subscribe().wait_for(enough).await;
    }

    /// Waits until so many voters have been given a vote back.
    pub(super) async fn freed(&self, since: Since, voters: usize) {
        let enough = |heard: &Heard| {
            let freed = heard.last.iter().filter(|&&last| last > since.0);
            freed.count() >= voters
        };
        let _ = self.heard.subscribe().wait_for(enough).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut keys = self.subscriptions.keys();
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
        if let Some(entry) = self.subscriptions.keys().get(key) {
            entry.heard.send_modify(|heard| {
                heard.count += 1;
                heard.last[self.voter] = heard.count;
            });
        }
    }

    fn missed(&self) {
        for Entry { heard, .. } in self.subscriptions.keys().values() {
            heard.send_modify(|heard| heard.listening.remove(self.voter));
        }
        self.subscriptions.changed.send_replace(());
    }
}
