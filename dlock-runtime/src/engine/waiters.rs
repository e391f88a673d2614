//! Which tasks of this process wait for which lock, and what wakes them.
//!
//! A waiter is woken to ask the store again; the message never tells it that it has the lock, since
//! any amount of time may pass between a message and its reader. So a lost message costs only time,
//! a wrong one costs a question, and a waiter treats every cause of waking alike.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;

use crate::backend::{BackendError, Mode, Owner, Request};
use crate::sync::Mutex;
use crate::tables::{HashMap, HashSet};

#[derive(Default)]
pub(crate) struct Waiters {
    state: Mutex<State>,
    /// Notified when the first waiter has come, or a key has its first waiter that waits to be
    /// woken.
    change: Notify,
    /// Notified when a key has lost its last waiter.
    left: Notify,
}

#[derive(Default)]
struct State {
    keys: HashMap<Arc<str>, BTreeMap<Owner, Entry>>,
    /// The keys whose first waiter that waits to be woken has come since this was last taken.
    newly_waited: HashSet<Arc<str>>,
    /// Owners whose caller has gone, and whose lock or place is being given back. A grant that
    /// arrives meanwhile is given back at once.
    leaving: HashMap<Owner, Arc<Notify>>,
}

struct Entry {
    mode: Mode,
    wake: Arc<Notify>,
    /// Since when it has waited to be woken; `None` while it asks the store.
    waits: Option<Instant>,
    /// Set when it will not get the lock.
    refused: Option<BackendError>,
}

/// A waiter, as shown to the store.
#[derive(Debug)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner that waits.
    pub owner: Owner,
    /// The mode in which it wants the lock.
    pub mode: Mode,
    /// Since when it has not asked.
    pub since: Instant,
    /// Set by [`Store::recheck`](crate::store::Store::recheck) if the waiter has cause to ask.
    pub wake: bool,
}

impl Waiter {
    pub(crate) fn of(owner: Owner, mode: Mode, since: Instant) -> Self {
        Self {
            owner,
            mode,
            since,
            wake: false,
        }
    }
}

/// A waiter's entry in the table, removed when this is dropped.
pub(super) struct Waiting<'a> {
    waiters: &'a Waiters,
    /// The lock's key, or the name of what is before the waiter in the queue.
    key: Arc<str>,
    owner: Owner,
    wake: Arc<Notify>,
}

/// An owner whose lock or place is being given back.
pub(super) struct Leaving<'a> {
    waiters: &'a Waiters,
    owner: Owner,
    granted: Arc<Notify>,
}

impl Waiters {
    pub(super) fn enter(&self, request: &Request) -> Waiting<'_> {
        let wake = Arc::new(Notify::new());
        let entry = Entry {
            mode: request.mode,
            wake: Arc::clone(&wake),
            waits: None,
            refused: None,
        };
        let mut state = self.state.lock();
        let first = state.keys.is_empty();
        let waiters = state.keys.entry(Arc::clone(&request.key)).or_default();
        waiters.insert(request.owner, entry);
        drop(state);
        if first {
            self.change.notify_one();
        }
        Waiting {
            waiters: self,
            key: Arc::clone(&request.key),
            owner: request.owner,
            wake,
        }
    }

    pub(super) fn leaves(&self, owner: Owner) -> Leaving<'_> {
        Leaving {
            waiters: self,
            owner,
            granted: Arc::clone(self.state.lock().leaving.entry(owner).or_default()),
        }
    }

    /// Wakes this owner. Returns whether it is known.
    pub(super) fn wake(&self, owner: Owner, key: &str) -> bool {
        let mut state = self.state.lock();
        if let Some(entry) = state.entry(key, owner) {
            entry.wake.notify_one();
        } else if let Some(leaving) = state.leaving.get(&owner) {
            leaving.notify_one();
        } else {
            return false;
        }
        true
    }

    /// Whether this owner waits, or what it has is being given back.
    pub(super) fn knows(&self, owner: Owner, key: &str) -> bool {
        let mut state = self.state.lock();
        state.entry(key, owner).is_some() || state.leaving.contains_key(&owner)
    }

    /// Whether somebody waits for this lock, or asks for a place in its queue.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.state.lock().keys.contains_key(key)
    }

    /// Whether this owner waits for this lock, or asks for a place.
    pub(crate) fn is_waiting(&self, owner: Owner, key: &str) -> bool {
        self.state.lock().entry(key, owner).is_some()
    }

    pub(super) fn wake_key(&self, key: &str) {
        if let Some(waiters) = self.state.lock().keys.get(key) {
            waiters.values().for_each(|entry| entry.wake.notify_one());
        }
    }

    pub(super) fn wake_all(&self) {
        let state = self.state.lock();
        let all = state.keys.values().flat_map(BTreeMap::values);
        all.for_each(|entry| entry.wake.notify_one());
    }

    /// Tells the waiters for this key that they will not get the lock, however long they wait.
    pub(super) fn refuse(&self, key: &str, error: &BackendError) {
        if let Some(waiters) = self.state.lock().keys.get_mut(key) {
            for entry in waiters.values_mut().filter(|entry| entry.waits.is_some()) {
                entry.refused = Some(error.clone());
                entry.wake.notify_one();
            }
        }
    }

    /// Waits until the first waiter has come, or a key has its first waiter that waits to be woken.
    pub(super) async fn change(&self) {
        self.change.notified().await;
    }

    /// Waits until some key has lost its last waiter. Only one task is notified.
    pub(crate) async fn left(&self) {
        self.left.notified().await;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().keys.is_empty()
    }

    /// Returns the keys whose first waiter has begun to wait since the last call. It may have left
    /// since.
    pub(super) fn newly_waited(&self) -> HashSet<Arc<str>> {
        take(&mut self.state.lock().newly_waited)
    }

    /// Whether somebody waits for this key to be woken.
    pub(super) fn is_waited(&self, key: &str) -> bool {
        let state = self.state.lock();
        let waiters = state.keys.get(key);
        waiters.is_some_and(|waiters| waiters.values().any(|entry| entry.waits.is_some()))
    }

    /// The waiters for a key that wait to be woken.
    pub(super) fn of_key(&self, key: &str) -> Vec<Waiter> {
        let state = self.state.lock();
        let Some(waiters) = state.keys.get(key) else {
            return Vec::new();
        };
        let waiting = waiters
            .iter()
            .filter_map(|(&owner, entry)| Some(Waiter::of(owner, entry.mode, entry.waits?)));
        waiting.collect()
    }
}

impl State {
    fn entry(&mut self, key: &str, owner: Owner) -> Option<&mut Entry> {
        self.keys.get_mut(key)?.get_mut(&owner)
    }

    fn remove(&mut self, key: &str, owner: Owner) -> Option<Entry> {
        let waiters = self.keys.get_mut(key)?;
        let entry = waiters.remove(&owner);
        if waiters.is_empty() {
            self.keys.remove(key);
            self.newly_waited.remove(key);
        }
        entry
    }
}

impl Waiting<'_> {
    /// From now on, this waiter waits under `name`, which is that of what is before it in the
    /// queue.
    pub(super) fn watches(&mut self, name: Arc<str>) {
        let mut state = self.waiters.state.lock();
        if let Some(entry) = state.remove(&self.key, self.owner) {
            let waiters = state.keys.entry(Arc::clone(&name)).or_default();
            waiters.insert(self.owner, entry);
        }
        drop(state);
        self.key = name;
    }

    /// Waits until there is cause to ask the store again. If this is dropped before, the caller
    /// asks for another reason or has gone.
    pub(super) async fn woken(&self, now: Instant) -> Result<(), BackendError> {
        struct Waits<'a>(&'a Waiting<'a>);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.waits(None);
            }
        }
        self.waits(Some(now));
        {
            let _waits = Waits(self);
            self.wake.notified().await;
        }
        let mut state = self.waiters.state.lock();
        let entry = state.entry(&self.key, self.owner);
        let refused = entry.and_then(|entry| entry.refused.take());
        refused.map_or(Ok(()), Err)
    }

    fn waits(&self, since: Option<Instant>) {
        let mut state = self.waiters.state.lock();
        let Some(waiters) = state.keys.get_mut(&self.key) else {
            return;
        };
        let first = since.is_some() && waiters.values().all(|entry| entry.waits.is_none());
        if let Some(entry) = waiters.get_mut(&self.owner) {
            entry.waits = since;
        }
        if first {
            state.newly_waited.insert(Arc::clone(&self.key));
        }
        drop(state);
        if first {
            self.waiters.change.notify_one();
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state.lock();
        state.remove(&self.key, self.owner);
        if !state.keys.contains_key(&self.key) {
            drop(state);
            self.waiters.left.notify_one();
        }
    }
}

impl Leaving<'_> {
    pub(super) async fn granted(&self) {
        self.granted.notified().await;
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut state = self.waiters.state.lock();
        // Dropped while the mutex is held: of several that end together, exactly one finds itself
        // the last.
        drop(take(&mut self.granted));
        let is_last = |granted: &Arc<Notify>| Arc::strong_count(granted) == 1;
        if state.leaving.get(&self.owner).is_some_and(is_last) {
            state.leaving.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Barrier;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;

    /// However many are waited for: otherwise each wait would cost as much as all of them.
    #[test]
    fn only_what_is_newly_waited_for_is_told() {
        let waiters = Waiters::default();
        let enter = |key: &str| waiters.enter(&Request::new(key, Mode::Write, Duration::MAX));
        let poll = |woken: Pin<&mut dyn Future<Output = Result<(), BackendError>>>| {
            let context = &mut Context::from_waker(Waker::noop());
            assert!(woken.poll(context).is_pending());
        };
        let told = || {
            let mut told = Vec::from_iter(waiters.newly_waited());
            told.sort_unstable();
            told.join(" ")
        };
        let now = Instant::now();
        let (one, again, other, gone) = (enter("one"), enter("one"), enter("other"), enter("gone"));
        assert_eq!(told(), "", "they only ask");
        let (mut first, mut second) = (pin!(one.woken(now)), pin!(again.woken(now)));
        poll(first.as_mut());
        assert_eq!(told(), "one");
        poll(second.as_mut());
        assert_eq!(told(), "", "somebody waited for it already");
        poll(pin!(gone.woken(now)));
        drop(gone);
        poll(pin!(other.woken(now)));
        assert_eq!(told(), "other", "nothing is kept of one that has gone");
        assert!(waiters.is_waited("one") && !waiters.is_waited("other"));
    }

    /// A store that listens for some locks stops listening for those that nobody waits for.
    #[test]
    fn a_lock_is_waited_for_until_its_last_waiter_has_left() {
        let waiters = Waiters::default();
        let request = || Request::new("key", Mode::Write, Duration::MAX);
        let (first, last) = (request(), request());
        let waits = |request: &Request| waiters.is_waiting(request.owner, "key");
        assert!(!waiters.has("key") && !waits(&first));
        let of_first = waiters.enter(&first);
        assert!(waiters.has("key") && !waiters.has("other"));
        assert!(waits(&first) && !waits(&last));
        let of_last = waiters.enter(&last);
        let mut left = pin!(waiters.left());
        let context = &mut Context::from_waker(Waker::noop());
        assert!(left.as_mut().poll(context).is_pending(), "both wait");
        drop(of_first);
        assert!(waiters.has("key") && !waits(&first) && waits(&last));
        assert!(left.as_mut().poll(context).is_pending(), "one still waits");
        drop(of_last);
        assert!(!waiters.has("key") && !waits(&last));
        assert!(left.as_mut().poll(context).is_ready());
    }

    /// Several cleanups of one owner may end at the same moment.
    #[test]
    fn who_has_left_is_not_known() {
        const ROUNDS: usize = 20_000;
        let (waiters, owner) = (Waiters::default(), Owner::unique());
        let (together, done) = (Barrier::new(2), Barrier::new(2));
        let leave = || {
            let leaving = waiters.leaves(owner);
            together.wait();
            drop(leaving);
            done.wait();
            let is_known = waiters.knows(owner, "key");
            done.wait();
            is_known
        };
        let is_known = std::thread::scope(|scope| {
            scope.spawn(|| (0..ROUNDS).filter(|_| leave()).count());
            (0..ROUNDS).filter(|_| leave()).count()
        });
        assert_eq!(is_known, 0, "it would be known for ever");
    }
}
