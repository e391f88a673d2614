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

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::{
    Error, Event, KeyValue, ResponseHeader, WatchFilterType, WatchOptions, WatchStream,
};
use tokio::sync::{Notify, watch};

use super::members::{Member, Members};
use super::queue::{KEYS_AT_ONCE, created_at};
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::store::Failure;

/// How often some of the keys are looked at: the default of `Store::pace`.
const PERIOD: Duration = Duration::from_secs(1);

/// Between streams. One that has lasted for longer than the last of them was a good
/// one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

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
#[derive(Clone)]
struct Watched {
    key: Arc<str>,
    created: i64,
    /// Who has seen it at a lower revision than this has to read it again.
    unknown_from: watch::Sender<i64>,
}

/// The watches are not made yet.
const NOT_MADE: i64 = 0;

/// A key is not there any more, or its watch.
const ENDED: i64 = i64::MAX;

/// Somebody who listens for the end of some keys, until this is dropped.
pub(super) struct Listening {
    watches: Arc<Watches>,
    watched: Vec<(i64, Watched)>,
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

    /// Listens for the end of these keys, each with when it was created, as
    /// `listening` does already if it still can.
    pub(super) fn keep_listening(
        self: &Arc<Self>,
        listening: &mut Option<Listening>,
        keys: &[(&str, i64)],
    ) {
        if listening.as_ref().is_some_and(|it| it.listens_for(keys)) {
            return;
        }
        let unknown_from = watch::Sender::new(NOT_MADE);
        let watched = self.change(|inner| {
            let begun = keys.iter().map(|&(key, created)| {
                let watched = Watched {
                    key: key.into(),
                    created,
                    unknown_from: unknown_from.clone(),
                };
                inner.last_id += 1;
                inner.changed.push(inner.last_id);
                inner.watched.insert(inner.last_id, watched.clone());
                (inner.last_id, watched)
            });
            begun.collect()
        });
        let watches = Arc::clone(self);
        *listening = Some(Listening { watches, watched });
    }

    /// What a silent stream costs: looks at the next of the keys, and tells those who
    /// listen for one that has gone.
    pub(super) async fn look(&self, deadline: Deadline) -> Result<(), Failure> {
        let watched = self.next_to_look_at();
        if watched.is_empty() {
            return Ok(());
        }
        let began = self.members.time.now();
        let keys = watched.iter().map(|(_, watched)| &*watched.key);
        let found = created_at(&self.members, keys, deadline).await?;
        for ((id, watched), found) in watched.into_iter().zip(found) {
            if found.is_some_and(|there| there <= watched.created) {
                continue;
            }
            let is_silent = self.change(|inner| inner.end(id) && inner.heard + PERIOD < began);
            if is_silent {
                self.silent.notify_one();
            }
        }
        Ok(())
    }

    /// The watches in turn.
    fn next_to_look_at(&self) -> Vec<(i64, Watched)> {
        let mut inner = self.inner();
        let last = inner.looked_at;
        let after = inner.watched.range((Excluded(last), Unbounded));
        let next = after.chain(inner.watched.range(..=last)).take(KEYS_AT_ONCE);
        let next: Vec<_> = next.map(|(&id, watched)| (id, watched.clone())).collect();
        inner.looked_at = next.last().map_or(0, |&(id, _)| id);
        next
    }

    /// Keeps the stream while there is somebody to listen.
    pub(super) async fn run(self: Arc<Self>) {
        let time = &self.members.time;
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        loop {
            let Some((id, key)) = self.first() else {
                self.changed.notified().await;
                continue;
            };
            let (member, began) = (self.members.current(), time.now());
            match self.in_time(self.open(&member, id, &key)).await {
                Some(stream) => {
                    self.serve(&member, stream, id).await;
                    // What it has not said, it never will.
                    self.change(Inner::end_all);
                }
                None => self.members.leave(&member),
            }
            if time.now() >= began + LAST_PAUSE {
                backoff.reset();
            }
            backoff.wait(time).await;
        }
    }

    /// The watch to begin with: all others are to be made too.
    fn first(&self) -> Option<(i64, Arc<str>)> {
        let mut inner = self.inner();
        inner.changed = inner.watched.keys().copied().collect();
        let (&id, watched) = inner.watched.first_key_value()?;
        Some((id, Arc::clone(&watched.key)))
    }

    async fn open(&self, member: &Arc<Member>, id: i64, key: &str) -> Result<WatchStream, Error> {
        let mut client = self.members.client(member).await?;
        client.watch(key, options(id)).await
    }

    /// Serves a stream until it says no more.
    async fn serve(&self, member: &Arc<Member>, mut stream: WatchStream, first: i64) {
        // The watches that the server has of us.
        let mut on_server = HashSet::from([first]);
        self.inner().heard = self.members.time.now();
        self.changed.notify_one();
        loop {
            tokio::select! {
                message = stream.message() => {
                    let Ok(Some(message)) = message else { return };
                    let (id, created) = (message.watch_id(), message.created());
                    if message.canceled() && is_refused(id, created, &mut on_server) {
                        // The token that the stream was opened with may have ended:
                        // it is the stream's for ever.
                        if self.members.settings.has_user() {
                            self.in_time(self.log_in(member)).await;
                        }
                        return;
                    }
                    // They are deletions, as no others are asked for.
                    let events = message.events().iter().filter_map(Event::kv);
                    let deleted_at = events.map(KeyValue::mod_revision).max();
                    // Servers read it when they have made the watch; older ones (3.6.1,
                    // 3.5.21) before, and have the watch begin behind it. So it misses
                    // nothing that is later (`recvLoop` in
                    // `server/etcdserver/api/v3rpc/watch.go`).
                    let made_at = message.header().filter(|_| created);
                    let made_at = made_at.map(ResponseHeader::revision);
                    self.change(|inner| {
                        inner.heard = self.members.time.now();
                        inner.hear(id, made_at, deleted_at);
                    });
                }
                () = self.changed.notified() => {
                    if self.in_time(self.catch_up(&mut stream, &mut on_server)).await.is_none() {
                        return self.members.leave(member);
                    }
                }
                () = self.silent.notified() => return,
            }
        }
    }

    /// Has the server watch what is watched now, and nothing else.
    async fn catch_up(
        &self,
        stream: &mut WatchStream,
        on_server: &mut HashSet<i64>,
    ) -> Result<(), Error> {
        let changed = std::mem::take(&mut self.inner().changed);
        for id in changed {
            let watched = self.inner().watched.get(&id).map(|it| Arc::clone(&it.key));
            match watched {
                Some(key) if on_server.insert(id) => stream.watch(&*key, options(id)).await?,
                None if on_server.remove(&id) => stream.cancel(id).await?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn log_in(&self, member: &Arc<Member>) -> Result<(), Error> {
        self.members.client(member).await?.refresh_token().await
    }

    /// `None`: it has failed, or takes too long.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Option<T> {
        let members = &self.members;
        let done = members.time.bound(members.patience(), work).await;
        done.ok()?.ok()
    }

    /// The stream's task sees to what has begun or ended.
    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner();
        let answer = change(&mut inner);
        if !inner.changed.is_empty() {
            self.changed.notify_one();
        }
        answer
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The server has made this watch, which tells of what is after this revision; or
    /// tells that a key of its name was deleted then.
    fn hear(&mut self, id: i64, made_at: Option<i64>, deleted_at: Option<i64>) {
        let Some(watched) = self.watched.get(&id) else {
            return;
        };
        if deleted_at.is_some_and(|deleted| deleted > watched.created) {
            self.end(id);
        } else if let Some(made_at) = made_at {
            watched.tell(made_at);
        }
    }

    /// Tells who listens by this watch, if somebody does.
    fn end(&mut self, id: i64) -> bool {
        let watched = self.watched.remove(&id);
        if let Some(watched) = &watched {
            watched.tell(ENDED);
            self.changed.push(id);
        }
        watched.is_some()
    }

    fn end_all(&mut self) {
        for watched in std::mem::take(&mut self.watched).into_values() {
            watched.tell(ENDED);
        }
    }
}

impl Watched {
    fn tell(&self, revision: i64) {
        let later = |known: i64| known.max(revision);
        self.unknown_from
            .send_modify(|known| *known = later(*known));
    }
}

impl Listening {
    fn listens_for(&self, keys: &[(&str, i64)]) -> bool {
        let watched = self.watched.iter().map(|(_, it)| (&*it.key, it.created));
        let has_ended = self
            .watched
            .iter()
            .any(|(_, it)| *it.unknown_from.borrow() == ENDED);
        watched.eq(keys.iter().copied()) && !has_ended
    }

    /// Resolves when one of the keys has to be read again by one who has seen them at
    /// this revision.
    pub(super) async fn told(&self, seen_at: i64) {
        if let Some((_, watched)) = self.watched.first() {
            let mut unknown_from = watched.unknown_from.subscribe();
            let _ = unknown_from.wait_for(|&revision| revision > seen_at).await;
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.watches.change(|inner| {
            let ids = self.watched.iter().map(|&(id, _)| id);
            inner
                .changed
                .extend(ids.filter(|id| inner.watched.remove(id).is_some()));
        });
    }
}

/// Whether a message that a watch was cancelled means one that the server has, or is
/// to have: not one that we have cancelled ourselves.
fn is_refused(id: i64, created: bool, on_server: &mut HashSet<i64>) -> bool {
    // Servers that are newer than 3.4 give a watch that they do not make the id -1
    // (`recvLoop` in `server/etcdserver/api/v3rpc/watch.go`).
    on_server.remove(&id) || created
}

/// A watch that begins now, and tells of deletions.
fn options(id: i64) -> Option<WatchOptions> {
    let options = WatchOptions::new().with_watch_id(id);
    Some(options.with_filters([WatchFilterType::NoPut]))
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::stores::etcd::settings::Settings;

    const KEY: &str = "dlock/key/place";
    const AHEAD: &str = "dlock/key/ahead";

    /// Watches of a process that has asked no server yet.
    fn watches() -> Arc<Watches> {
        let settings = Settings::from_url("etcd://127.0.0.1").expect("a URL");
        Watches::new(Arc::new(Members::new(settings, crate::engine::context())))
    }

    fn listen(watches: &Arc<Watches>, keys: &[(&str, i64)]) -> Listening {
        let mut listening = None;
        watches.keep_listening(&mut listening, keys);
        listening.expect("it listens")
    }

    fn ids(listening: &Listening) -> Vec<i64> {
        listening.watched.iter().map(|&(id, _)| id).collect()
    }

    /// Whether one has to read again who has seen the keys then.
    async fn is_told(listening: &Listening, seen_at: i64) -> bool {
        let told = listening.told(seen_at);
        timeout(Duration::ZERO, told).await.is_ok()
    }

    #[tokio::test]
    async fn what_was_seen_before_the_watch_was_made_is_read_again() {
        let watches = watches();
        let listening = listen(&watches, &[(KEY, 5), (AHEAD, 4)]);
        assert!(!is_told(&listening, 7).await, "not made yet");
        let [own, ahead] = ids(&listening)[..] else {
            panic!("two watches")
        };
        watches.inner().hear(ahead, Some(8), None);
        assert!(is_told(&listening, 7).await);
        watches.inner().hear(own, Some(7), None);
        assert!(is_told(&listening, 7).await, "by the other one");
        assert!(!is_told(&listening, 8).await);
    }

    #[tokio::test]
    async fn the_end_of_either_key_is_told() {
        let watches = watches();
        for number in [0, 1] {
            let listening = listen(&watches, &[(KEY, 5), (AHEAD, 4)]);
            watches.inner().hear(ids(&listening)[number], None, Some(6));
            assert!(is_told(&listening, 9).await);
            drop(listening);
            assert!(watches.inner().watched.is_empty());
        }
    }

    #[tokio::test]
    async fn a_key_of_the_same_name_is_not_the_same_key() {
        let watches = watches();
        let (old, new) = (listen(&watches, &[(KEY, 5)]), listen(&watches, &[(KEY, 9)]));
        for listening in [&old, &new] {
            let id = ids(listening)[0];
            watches.inner().hear(id, Some(9), None);
            watches.inner().hear(id, None, Some(7));
        }
        assert!(is_told(&old, 9).await);
        assert!(!is_told(&new, 9).await, "it was deleted before");
        watches.inner().hear(ids(&new)[0], None, Some(12));
        assert!(is_told(&new, 9).await);
        assert!(watches.inner().watched.is_empty());
    }

    #[tokio::test]
    async fn one_who_listens_already_goes_on() {
        let watches = watches();
        let mut listening = Some(listen(&watches, &[(KEY, 9), (AHEAD, 5)]));
        let now = |listening: &Option<Listening>| ids(listening.as_ref().expect("it listens"));
        let first = now(&listening);
        watches.keep_listening(&mut listening, &[(KEY, 9), (AHEAD, 5)]);
        assert_eq!(now(&listening), first);
        // Somebody else is ahead now.
        watches.keep_listening(&mut listening, &[(KEY, 9), (AHEAD, 7)]);
        let second = now(&listening);
        assert!(second.iter().all(|id| !first.contains(id)));
        assert_eq!(watches.inner().watched.len(), 2);
        // A watch ends: others are needed.
        watches.inner().end(second[0]);
        watches.keep_listening(&mut listening, &[(KEY, 9), (AHEAD, 7)]);
        let listening = listening.expect("it listens");
        assert!(ids(&listening).iter().all(|id| !second.contains(id)));
        assert!(!is_told(&listening, 9).await);
    }

    #[tokio::test]
    async fn watches_are_looked_at_in_turn() {
        let watches = watches();
        let some = KEYS_AT_ONCE / 2;
        let all: Vec<_> = (0..KEYS_AT_ONCE + some)
            .map(|number| listen(&watches, &[(&*format!("{KEY}{number}"), 5)]))
            .collect();
        let ids = |from: usize, to: usize| all[from..to].iter().flat_map(ids);
        let looked = || watches.next_to_look_at().into_iter().map(|(id, _)| id);
        assert!(looked().eq(ids(0, KEYS_AT_ONCE)));
        assert!(looked().eq(ids(KEYS_AT_ONCE, all.len()).chain(ids(0, some))));
    }

    #[test]
    fn a_watch_that_was_refused_is_known_by_any_version() {
        let ours = || HashSet::from([7]);
        assert!(is_refused(7, true, &mut ours()), "3.4");
        assert!(is_refused(7, false, &mut ours()), "ended later");
        assert!(is_refused(-1, true, &mut ours()), "newer servers");
        assert!(!is_refused(8, false, &mut ours()), "ended by ourselves");
    }
}
