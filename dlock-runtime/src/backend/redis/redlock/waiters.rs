//! Who in this process waits for what, and what wakes them.
//!
//! A node that is given its vote back says so on the lock's own channel, to
//! which a process listens while somebody in it waits. So there is no queue, no
//! key and nothing to clean up: a process that dies hears no more. As on a
//! single node, to be woken is to ask again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, watch};

use super::super::connector::Listener;
use super::super::names::Keyspace;
use super::super::values::LockValue;
use super::ballot::majority_of;
use super::nodes::NodeSet;
use crate::backend::{Mode, Owner, Request};

/// The waiters of a backend.
pub(super) struct Waiters {
    majority: usize,
    state: Mutex<State>,
    /// Changes with the keys that are waited for, and when what was heard may
    /// not have been all.
    keys_changed: watch::Sender<()>,
}

struct State {
    keys: HashMap<Arc<str>, Watched>,
    /// When a majority was last heard of.
    heard: Instant,
}

/// A key that somebody waits for.
#[derive(Default)]
struct Watched {
    waiters: BTreeMap<Owner, Waiter>,
    /// The nodes whose channel is listened to.
    listening: NodeSet,
}

struct Waiter {
    mode: Mode,
    news: Arc<News>,
    /// The nodes that have said they are free of a vote, since the waiter asked.
    freed: NodeSet,
}

/// What wakes a waiter.
#[derive(Default)]
struct News {
    /// There is cause to ask.
    ask: Notify,
    /// A majority has been freed.
    freed: Notify,
    /// A majority is listened to.
    listening: Notify,
}

/// A waiter's place in the table, which it leaves when this is dropped.
pub(super) struct Waiting<'a> {
    waiters: &'a Waiters,
    key: &'a Arc<str>,
    owner: Owner,
    news: Arc<News>,
}

impl Waiters {
    pub(super) fn new(nodes: usize) -> Arc<Self> {
        Arc::new(Self {
            majority: majority_of(nodes),
            state: Mutex::new(State {
                keys: HashMap::new(),
                heard: Instant::now(),
            }),
            keys_changed: watch::Sender::new(()),
        })
    }

    pub(super) fn enter<'a>(&'a self, request: &'a Request) -> Waiting<'a> {
        let news = Arc::new(News::default());
        let waiter = Waiter {
            mode: request.mode,
            news: Arc::clone(&news),
            freed: NodeSet::default(),
        };
        let mut state = self.state();
        let watched = state.keys.entry(Arc::clone(&request.key)).or_default();
        let first = watched.waiters.is_empty();
        watched.waiters.insert(request.owner, waiter);
        if watched.listening.len() >= self.majority {
            news.listening.notify_one();
        }
        drop(state);
        if first {
            self.keys_changed.send_replace(());
        }
        Waiting {
            waiters: self,
            key: &request.key,
            owner: request.owner,
            news,
        }
    }

    /// Messages may have been missed: everybody asks again.
    pub(super) fn wake_all(&self) {
        let state = self.state();
        for waiter in state.keys.values().flat_map(|key| key.waiters.values()) {
            waiter.news.ask.notify_one();
        }
    }

    /// The keys that somebody waits for.
    pub(super) fn keys(&self) -> Vec<Arc<str>> {
        self.state().keys.keys().cloned().collect()
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.keys_changed.subscribe()
    }

    /// The channels of these keys are listened to at a node.
    pub(super) fn listens<'k>(&self, node: usize, keys: impl Iterator<Item = &'k Arc<str>>) {
        let mut state = self.state();
        for key in keys {
            let Some(watched) = state.keys.get_mut(key) else {
                continue;
            };
            watched.listening.insert(node);
            if watched.listening.len() == self.majority {
                for waiter in watched.waiters.values() {
                    waiter.news.listening.notify_one();
                }
            }
        }
    }

    /// The connection on which a node was listened to has gone, or is new.
    fn is_deaf(&self, node: usize) {
        for watched in self.state().keys.values_mut() {
            watched.listening.remove(node);
        }
        self.keys_changed.send_replace(());
    }

    /// A node says that it was given a vote for this lock back.
    fn freed(&self, node: usize, key: &str) {
        let mut state = self.state();
        let Some(watched) = state.keys.get_mut(key) else {
            return;
        };
        for waiter in watched.waiters.values_mut() {
            waiter.freed.insert(node);
            waiter.news.ask.notify_one();
            if waiter.freed.len() >= self.majority {
                waiter.news.freed.notify_one();
            }
        }
    }

    /// Looks at what the nodes have for a lock, as far as they have answered,
    /// and wakes those who could have it.
    pub(super) fn look<'v>(
        &self,
        key: &str,
        values: impl Iterator<Item = Option<&'v [u8]>> + Clone,
    ) {
        let state = self.state();
        let Some(watched) = state.keys.get(key) else {
            return;
        };
        for waiter in watched.waiters.values() {
            let in_the_way = |value: &[u8]| match LockValue::parse(value) {
                Some(value) => value.mode == Mode::Write || waiter.mode == Mode::Write,
                // Asking shows what it is.
                None => false,
            };
            let free = values
                .clone()
                .filter(|value| !value.is_some_and(in_the_way));
            if free.count() >= self.majority {
                waiter.news.ask.notify_one();
            }
        }
    }

    /// A majority has answered a question that was sent at this time.
    pub(super) fn heard(&self, asked: Instant) {
        let mut state = self.state();
        state.heard = state.heard.max(asked);
    }

    /// When a majority was last known to answer.
    pub(super) fn last_heard(&self) -> Instant {
        self.state().heard
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting<'_> {
    /// From now on, only what is heard later counts.
    pub(super) fn forget_what_was_heard(&self) {
        let mut state = self.waiters.state();
        let watched = state.keys.get_mut(self.key);
        if let Some(waiter) = watched.and_then(|key| key.waiters.get_mut(&self.owner)) {
            waiter.freed = NodeSet::default();
        }
    }

    /// Waits until a majority of the nodes is listened to.
    pub(super) async fn listening(&self) {
        self.news.listening.notified().await;
    }

    /// Waits until there is cause to ask again. True if a node has been freed,
    /// and others may be about to.
    pub(super) async fn woken(&self) -> bool {
        self.news.ask.notified().await;
        let state = self.waiters.state();
        let watched = state.keys.get(self.key);
        watched
            .and_then(|key| key.waiters.get(&self.owner))
            .is_some_and(|waiter| !waiter.freed.is_empty())
    }

    /// Waits until a majority of the nodes has been freed.
    pub(super) async fn freed_by_majority(&self) {
        loop {
            let enough = {
                let state = self.waiters.state();
                let watched = state.keys.get(self.key);
                let waiter = watched.and_then(|key| key.waiters.get(&self.owner));
                waiter.is_none_or(|waiter| waiter.freed.len() >= self.waiters.majority)
            };
            if enough {
                return;
            }
            self.news.freed.notified().await;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state();
        if let Some(watched) = state.keys.get_mut(self.key) {
            watched.waiters.remove(&self.owner);
            if watched.waiters.is_empty() {
                state.keys.remove(self.key);
                drop(state);
                self.waiters.keys_changed.send_replace(());
            }
        }
    }
}

/// Hears what one node says.
pub(super) struct Ear {
    pub(super) node: usize,
    pub(super) space: Keyspace,
    pub(super) waiters: Arc<Waiters>,
}

impl Listener for Ear {
    /// They come and go with the waiters.
    fn channel(&self) -> Option<String> {
        None
    }

    fn hear(&self, channel: &str, _message: &str) {
        if let Some(key) = self.space.freed_key(channel) {
            self.waiters.freed(self.node, key);
        }
    }

    fn missed(&self) {
        self.waiters.is_deaf(self.node);
    }
}
