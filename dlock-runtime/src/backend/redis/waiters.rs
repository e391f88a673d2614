//! Who in this process waits for what, and what wakes them.
//!
//! A waiter is woken to ask the server again, never told that it has the lock:
//! between a message and its reader lies any amount of time. So a lost message
//! costs time only, a wrong one costs a question, and every cause of waking is
//! the same to the waiter.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::connector::Listener;
use super::holders::Holders;
use super::names::Keyspace;
use super::process::Process;
use super::values::LockValue;
use crate::backend::{Mode, Owner, Request};

/// A waiter of a busy key makes sure of its place in the queue this often.
const VERIFY: Duration = Duration::from_secs(10);

/// The waiters of a backend.
pub(super) struct Waiters {
    state: Mutex<State>,
    /// Those who wait no more because they have what they waited for.
    pub(super) holders: Holders,
    /// Somebody waits where nobody did.
    arrival: Notify,
    /// Somebody who does not wait was granted a lock.
    unexpected: Notify,
}

struct State {
    keys: HashMap<Arc<str>, Watched>,
    /// Owners whose caller has gone and whose lock or place is being given
    /// back: a grant that crosses with that is given back at once.
    leaving: HashMap<Owner, Arc<Notify>>,
    unexpected: Unexpected,
    /// When the server was last heard of by this module's users.
    heard: Instant,
}

/// Grants to owners who do not wait, until they are taken by
/// [`Waiters::unexpected`].
#[derive(Default)]
pub(super) struct Unexpected {
    /// The entries in the queue of owners who are unknown here, by key.
    pub(super) strangers: HashMap<Arc<str>, Vec<String>>,
    /// Those who hold the lock that they were granted.
    pub(super) holders: Vec<Request>,
}

/// A key that somebody waits for.
#[derive(Default)]
struct Watched {
    waiters: BTreeMap<Owner, Waiter>,
    /// What the lock held when it was last looked at.
    value: Option<Vec<u8>>,
    /// It was free then.
    free: bool,
}

struct Waiter {
    wake: Arc<Notify>,
    mode: Mode,
    /// When it last had cause to make sure of its place.
    verified: Instant,
}

/// A waiter's place in the table, which it leaves when this is dropped.
pub(super) struct Waiting<'a> {
    waiters: &'a Waiters,
    key: &'a Arc<str>,
    owner: Owner,
    wake: Arc<Notify>,
}

/// Hears of grants to the waiters of this process.
pub(super) struct WakeUps {
    pub(super) process: Process,
    pub(super) waiters: Arc<Waiters>,
}

impl Listener for WakeUps {
    fn channel(&self) -> Option<String> {
        Some(self.process.wake_channel())
    }

    fn hear(&self, _channel: &str, message: &str) {
        if let Some((entry, owner, key)) = Keyspace::Server.parse_wake(message) {
            self.waiters.granted(key, owner, entry);
        }
    }

    fn missed(&self) {
        self.waiters.wake_all();
    }
}

impl Waiters {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                keys: HashMap::new(),
                leaving: HashMap::new(),
                unexpected: Unexpected::default(),
                heard: Instant::now(),
            }),
            holders: Holders::default(),
            arrival: Notify::new(),
            unexpected: Notify::new(),
        })
    }

    /// Enters a waiter, before it first asks for a place in the queue.
    pub(super) fn enter<'a>(&'a self, request: &'a Request) -> Waiting<'a> {
        let wake = Arc::new(Notify::new());
        let waiter = Waiter {
            wake: Arc::clone(&wake),
            mode: request.mode,
            verified: Instant::now(),
        };
        let mut state = self.state();
        let first = state.keys.is_empty();
        let watched = state.keys.entry(Arc::clone(&request.key)).or_default();
        watched.waiters.insert(request.owner, waiter);
        drop(state);
        if first {
            self.arrival.notify_one();
        }
        Waiting {
            waiters: self,
            key: &request.key,
            owner: request.owner,
            wake,
        }
    }

    /// A message says that this owner, by its entry in the queue, was granted the
    /// lock.
    pub(super) fn granted(&self, key: &str, owner: Owner, entry: &str) {
        let mut state = self.state();
        if let Some(waiter) = state.keys.get(key).and_then(|key| key.waiters.get(&owner)) {
            waiter.wake.notify_one();
        } else if let Some(leaving) = state.leaving.get(&owner) {
            leaving.notify_one();
        } else {
            // A holder is entered before it leaves the waiters: it is not missed.
            if let Some(request) = self.holders.get(owner) {
                state.unexpected.holders.push(request);
            } else {
                let strangers = &mut state.unexpected.strangers;
                let strangers = strangers.entry(key.into()).or_default();
                strangers.push(entry.to_owned());
            }
            drop(state);
            self.unexpected.notify_one();
        }
    }

    /// Waits until locks were granted to owners who do not wait for them.
    pub(super) async fn unexpected(&self) -> Unexpected {
        loop {
            let unexpected = std::mem::take(&mut self.state().unexpected);
            if !unexpected.is_empty() {
                return unexpected;
            }
            self.unexpected.notified().await;
        }
    }

    /// Whether this owner waits, has what it waited for, or is about to be given
    /// back. It is entered before its place in the queue is asked for: who has a
    /// place and is unknown has gone for good.
    pub(super) fn knows(&self, key: &str, owner: Owner) -> bool {
        let state = self.state();
        let waits = |key: &Watched| key.waiters.contains_key(&owner);
        state.keys.get(key).is_some_and(waits)
            || state.leaving.contains_key(&owner)
            || self.holders.get(owner).is_some()
    }

    /// Messages may have been missed, or places lost: everybody asks again.
    pub(super) fn wake_all(&self) {
        let mut state = self.state();
        let now = Instant::now();
        for waiter in state
            .keys
            .values_mut()
            .flat_map(|key| key.waiters.values_mut())
        {
            waiter.ask(now);
        }
    }

    /// Those who wait for this key ask again.
    pub(super) fn wake(&self, key: &str) {
        let mut state = self.state();
        let now = Instant::now();
        if let Some(watched) = state.keys.get_mut(key) {
            for waiter in watched.waiters.values_mut() {
                waiter.ask(now);
            }
        }
    }

    /// The keys that somebody waits for.
    pub(super) fn keys(&self) -> Vec<Arc<str>> {
        self.state().keys.keys().cloned().collect()
    }

    /// Waits until somebody waits.
    pub(super) async fn arrival(&self) {
        while self.state().keys.is_empty() {
            self.arrival.notified().await;
        }
    }

    /// Looks at what a lock holds now, and wakes who should ask again.
    pub(super) fn look(&self, key: &str, value: Option<&[u8]>) {
        let mut state = self.state();
        let Some(watched) = state.keys.get_mut(key) else {
            return;
        };
        let now = Instant::now();
        match value {
            // The holder has died, or the server has lost its data. Whoever
            // asks makes the server grant the lock to the first in the queue;
            // if one was no help, they may all have lost their places.
            None => {
                let all = if watched.free { usize::MAX } else { 1 };
                watched
                    .waiters
                    .values_mut()
                    .take(all)
                    .for_each(|waiter| waiter.ask(now));
            }
            Some(value) => {
                let changed = watched.value.as_deref() != Some(value);
                let holder = LockValue::parse(value);
                for (owner, waiter) in &mut watched.waiters {
                    let cause = match holder {
                        // The message that said so was lost; or the holder has
                        // overtaken the queue, does not know of it, and would
                        // not hand the lock on.
                        Some(LockValue {
                            mode: Mode::Write,
                            owner: holder,
                            waited,
                        }) => holder == *owner || !waited,
                        // Other readers may have been let in, so why not this.
                        Some(LockValue {
                            mode: Mode::Read, ..
                        }) => changed && waiter.mode == Mode::Read,
                        // Asking shows what it is.
                        None => changed,
                    };
                    // The lock goes from hand to hand and passes this one by.
                    let passed_by = changed && now.duration_since(waiter.verified) >= VERIFY;
                    if cause || passed_by {
                        waiter.ask(now);
                    }
                }
                if changed {
                    watched.value = Some(value.to_owned());
                }
            }
        }
        watched.free = value.is_none();
    }

    /// The server has answered a question that was sent at this time.
    pub(super) fn heard(&self, asked: Instant) {
        let mut state = self.state();
        state.heard = state.heard.max(asked);
    }

    /// When the server was last known to answer.
    pub(super) fn last_heard(&self) -> Instant {
        self.state().heard
    }

    /// An owner's lock or place is being given back until [`left`](Self::left).
    pub(super) fn leaves(&self, owner: Owner) -> Arc<Notify> {
        Arc::clone(self.state().leaving.entry(owner).or_default())
    }

    pub(super) fn left(&self, owner: Owner) {
        self.state().leaving.remove(&owner);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unexpected {
    fn is_empty(&self) -> bool {
        self.strangers.is_empty() && self.holders.is_empty()
    }
}

impl Waiter {
    fn ask(&mut self, now: Instant) {
        self.verified = now;
        self.wake.notify_one();
    }
}

impl Waiting<'_> {
    /// Waits until there is cause to ask the server again.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state();
        if let Some(watched) = state.keys.get_mut(self.key) {
            watched.waiters.remove(&self.owner);
            if watched.waiters.is_empty() {
                state.keys.remove(self.key);
            }
        }
    }
}
