//! One watch stream for all that a process waits for.
//!
//! A watch begins now. One that begins in the past is served by a loop of the
//! server's that runs every 100 ms (`syncWatchersLoop` in
//! `server/storage/mvcc/watchable_store.go`). What was read before the server has
//! made the watch is therefore read once more: the answer says behind which
//! revision the watch begins.
//!
//! What comes over the stream is a hint: whoever is told reads again. So a watch
//! that was cancelled, compacted, or broken costs its waiters a read; and one that
//! is silent costs them what it takes until their turn comes to be looked at,
//! which happens to a hundred keys every second.

mod message;
mod stream;

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::members::Members;
use super::queue::{KEYS_AT_ONCE, created_at};
use crate::deadline::Deadline;
use crate::store::Failure;

/// How often some of the keys are looked at: the default of `Store::pace`.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) struct Watches {
    members: Arc<Members>,
    inner: Mutex<Inner>,
    /// Told when there is something for the stream's task to do.
    changed: Notify,
    /// Told when the stream was found to be silent.
    silent: Notify,
}

struct Inner {
    last_id: i64,
    watched: BTreeMap<i64, Watched>,
    /// Watches that have begun or ended since the stream's task looked.
    changed: Vec<i64>,
    /// The watch whose key was looked at last.
    looked_at: i64,
    /// When the stream last said something.
    heard: Instant,
}

/// The key that was created at this revision. Another one of the same name is
/// another key: that of a session of Go's `concurrency.Mutex` that queues again, or
/// of a request of ours.
struct Watched {
    key: Arc<str>,
    created: i64,
    /// Who has seen it at a lower revision than this has to read it again.
    unknown_from: watch::Sender<i64>,
}

/// The watch is not made yet.
const NOT_MADE: i64 = 0;

/// The key is not there any more, or the watch.
const ENDED: i64 = i64::MAX;

/// Somebody who listens for the end of a key, until this is dropped.
pub(super) struct Listening {
    watches: Arc<Watches>,
    id: i64,
    unknown_from: watch::Receiver<i64>,
}

impl Watches {
    pub(super) fn new(members: Arc<Members>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                last_id: 0,
                watched: BTreeMap::new(),
                changed: Vec::new(),
                looked_at: 0,
                heard: members.time.now(),
            }),
            members,
            changed: Notify::new(),
            silent: Notify::new(),
        })
    }

    /// Listens for the end of this key, as `listening` does already if it still
    /// can.
    pub(super) fn keep_listening(
        self: &Arc<Self>,
        listening: &mut Option<Listening>,
        key: &str,
        created: i64,
    ) {
        let listens = |listening: &Listening| {
            let inner = self.inner();
            let watched = inner.watched.get(&listening.id);
            watched.is_some_and(|watched| *watched.key == *key && watched.created == created)
        };
        if !listening.as_ref().is_some_and(listens) {
            *listening = Some(self.listen(key, created));
        }
    }

    fn listen(self: &Arc<Self>, key: &str, created: i64) -> Listening {
        let (sender, unknown_from) = watch::channel(NOT_MADE);
        let watched = Watched {
            key: key.into(),
            created,
            unknown_from: sender,
        };
        let mut inner = self.inner();
        inner.last_id += 1;
        let id = inner.last_id;
        inner.watched.insert(id, watched);
        self.change(inner, id);
        Listening {
            watches: Arc::clone(self),
            id,
            unknown_from,
        }
    }

    /// The server has made this watch, which tells of what is after this revision.
    fn made(&self, id: i64, since: i64) {
        if let Some(watched) = self.inner().watched.get(&id) {
            watched.unknown_from.send_replace(since);
        }
    }

    /// Tells who listens by this watch.
    fn end(&self, id: i64) {
        let mut inner = self.inner();
        if let Some(watched) = inner.watched.remove(&id) {
            watched.unknown_from.send_replace(ENDED);
            self.change(inner, id);
        }
    }

    fn change(&self, mut inner: MutexGuard<'_, Inner>, id: i64) {
        inner.changed.push(id);
        drop(inner);
        self.changed.notify_one();
    }

    /// A key of this watch's name was deleted at this revision.
    fn deleted(&self, id: i64, revision: i64) {
        let created = self.inner().watched.get(&id).map(|watched| watched.created);
        if created.is_some_and(|created| created < revision) {
            self.end(id);
        }
    }

    fn all_ended(&self) {
        let ids: Vec<_> = self.inner().watched.keys().copied().collect();
        for id in ids {
            self.end(id);
        }
    }

    /// What a silent stream costs: looks at the next of the keys, and tells those who
    /// listen for one that has gone.
    pub(super) async fn look(&self, deadline: Deadline) -> Result<(), Failure> {
        let watched = self.next_to_look_at();
        if watched.is_empty() {
            return Ok(());
        }
        let began = self.members.time.now();
        let keys = watched.iter().map(|(_, key, _)| &**key);
        let found = created_at(&self.members, keys, deadline).await?;
        for ((id, _, created), found) in watched.into_iter().zip(found) {
            if found.is_some_and(|there| there <= created) {
                continue;
            }
            if self.is_silent_about(id, began) {
                self.silent.notify_one();
            }
            self.end(id);
        }
        Ok(())
    }

    /// Whether somebody listens by this watch still, and the stream has long said
    /// nothing.
    fn is_silent_about(&self, id: i64, now: Instant) -> bool {
        let inner = self.inner();
        inner.watched.contains_key(&id) && inner.heard + PERIOD < now
    }

    /// The watches in turn: with the key of each, and when that was created.
    fn next_to_look_at(&self) -> Vec<(i64, Arc<str>, i64)> {
        let mut inner = self.inner();
        let last = inner.looked_at;
        let after = inner.watched.range((Excluded(last), Unbounded));
        let next = after.chain(inner.watched.range(..=last)).take(KEYS_AT_ONCE);
        let next = next.map(|(&id, watched)| (id, Arc::clone(&watched.key), watched.created));
        let next: Vec<_> = next.collect();
        inner.looked_at = next.last().map_or(0, |&(id, ..)| id);
        next
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listening {
    /// Resolves when the key has to be read again by one who has seen it at this
    /// revision.
    pub(super) async fn told(&self, seen_at: i64) {
        let mut unknown_from = self.unknown_from.clone();
        // The sender goes when there is nothing more to hear.
        let _ = unknown_from.wait_for(|&revision| revision > seen_at).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut inner = self.watches.inner();
        if inner.watched.remove(&self.id).is_some() {
            self.watches.change(inner, self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::stores::etcd::settings::Settings;

    const KEY: &str = "dlock/key/place";

    /// Watches of a process that has asked no server yet.
    fn watches() -> Arc<Watches> {
        let settings = Settings::from_url("etcd://127.0.0.1").expect("a URL");
        Watches::new(Arc::new(Members::new(settings, crate::engine::context())))
    }

    /// Whether one has to read again who has seen the key then.
    async fn is_told(listening: &Listening, seen_at: i64) -> bool {
        let told = listening.told(seen_at);
        timeout(std::time::Duration::ZERO, told).await.is_ok()
    }

    #[tokio::test]
    async fn what_was_seen_before_the_watch_was_made_is_read_again() {
        let watches = watches();
        let listening = watches.listen(KEY, 5);
        assert!(!is_told(&listening, 7).await, "not made yet");
        watches.made(listening.id, 8);
        assert!(is_told(&listening, 7).await);
        assert!(!is_told(&listening, 8).await);
    }

    #[tokio::test]
    async fn a_key_of_the_same_name_is_not_the_same_key() {
        let watches = watches();
        let (old, new) = (watches.listen(KEY, 5), watches.listen(KEY, 9));
        for listening in [&old, &new] {
            watches.made(listening.id, 9);
            watches.deleted(listening.id, 7);
        }
        assert!(is_told(&old, 9).await);
        assert!(!is_told(&new, 9).await, "it was deleted before");
        watches.deleted(new.id, 12);
        assert!(is_told(&new, 9).await);
        assert!(watches.inner().watched.is_empty());
    }

    #[tokio::test]
    async fn one_who_listens_already_goes_on() {
        let watches = watches();
        let mut listening = None;
        watches.keep_listening(&mut listening, KEY, 5);
        let id = listening.as_ref().expect("it listens").id;
        watches.keep_listening(&mut listening, KEY, 5);
        assert_eq!(listening.as_ref().map(|it| it.id), Some(id));
        watches.keep_listening(&mut listening, KEY, 9);
        let next = listening.as_ref().expect("it listens").id;
        assert_ne!(next, id, "for the new one");
        assert_eq!(watches.inner().watched.len(), 1);
        // Its watch ends: it needs another.
        watches.end(next);
        assert!(watches.inner().watched.is_empty());
        watches.keep_listening(&mut listening, KEY, 9);
        let listening = listening.expect("it listens");
        assert_ne!(listening.id, next);
        assert!(!is_told(&listening, 9).await);
    }

    #[tokio::test]
    async fn watches_are_looked_at_in_turn() {
        let watches = watches();
        let some = KEYS_AT_ONCE / 2;
        let all: Vec<_> = (0..KEYS_AT_ONCE + some)
            .map(|number| watches.listen(&format!("{KEY}{number}"), 5))
            .collect();
        let ids = |from: usize, to: usize| all[from..to].iter().map(|it| it.id);
        let looked = || watches.next_to_look_at().into_iter().map(|(id, ..)| id);
        assert!(looked().eq(ids(0, KEYS_AT_ONCE)));
        assert!(looked().eq(ids(KEYS_AT_ONCE, all.len()).chain(ids(0, some))));
    }
}
