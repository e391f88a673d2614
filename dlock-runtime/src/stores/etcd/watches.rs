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
use std::mem::take;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Error, Event, KeyValue, ResponseHeader, WatchFilterType, WatchOptions, WatchStream,
};
use tokio::sync::Notify;

use super::members::{Member, Members};
use super::queue::{KEYS_AT_ONCE, created_at};
use crate::backend::{Owner, Request};
use crate::deadline::Deadline;
use crate::engine::time::Backoff;
use crate::store::Failure;
use crate::sync::Mutex;

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
    waiting: BTreeMap<i64, Waiting>,
    /// Who has come or gone since the stream's task looked.
    changed: Vec<i64>,
    /// Whose keys were looked at last.
    looked_at: i64,
    /// When the stream last said something.
    last_response_at: Instant,
}

/// A request that waits for the end of one of its keys: its own, and that of the one
/// before it. The watch of each has a number of its own ([`watches_of`]).
struct Waiting {
    owner: Owner,
    lock: Arc<str>,
    keys: Keys,
    /// The revision at which it has seen them.
    seen_at: i64,
    /// If it has seen them at a lower revision than this, it has to read again: what was
    /// before is not told by the watches.
    unknown_from: i64,
}

/// Two keys, each with the revision at which it was created. Another one of the same
/// name is another key: that of a session of Go's `concurrency.Mutex` that queues again,
/// or of a request of ours.
pub(super) type Keys = [(String, i64); 2];

/// Somebody who waits, until this is dropped.
pub(super) struct Listening {
    watches: Arc<Watches>,
    id: i64,
}

impl Watches {
    pub(super) fn new(members: Arc<Members>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                last_id: 0,
                waiting: BTreeMap::new(),
                changed: Vec::new(),
                looked_at: 0,
                last_response_at: members.time.now(),
            }),
            members,
            changed: Notify::new(),
            silent: Notify::new(),
        })
    }

    /// From here on the request is woken when one of these keys, which it has seen at this
    /// revision, may have ended. `listening` goes on if it is for the same.
    pub(super) fn keep_listening(
        self: &Arc<Self>,
        listening: &mut Option<Listening>,
        request: &Request,
        keys: Keys,
        seen_at: i64,
    ) {
        let mut inner = self.inner.lock();
        let same = listening.as_ref();
        let same = same.and_then(|it| inner.waiting.get_mut(&it.id));
        if let Some(same) = same.filter(|it| it.keys == keys) {
            same.seen_at = seen_at;
            return self.tell(same);
        }
        inner.last_id += 1;
        let id = inner.last_id;
        let waiting = Waiting {
            owner: request.owner,
            lock: Arc::clone(&request.key),
            keys,
            seen_at,
            unknown_from: 0,
        };
        inner.waiting.insert(id, waiting);
        inner.changed.push(id);
        drop(inner);
        self.changed.notify_one();
        let watches = Arc::clone(self);
        *listening = Some(Listening { watches, id });
    }

    /// Nobody waits by this any more. Who did, if anybody.
    fn remove(&self, id: i64) -> Option<Waiting> {
        let mut inner = self.inner.lock();
        let removed = inner.waiting.remove(&id)?;
        inner.changed.push(id);
        drop(inner);
        self.changed.notify_one();
        Some(removed)
    }

    /// One of the keys is not there any more, or its watch. Whether somebody waited.
    fn end(&self, id: i64) -> bool {
        let ended = self.remove(id);
        if let Some(waiting) = &ended {
            self.wake(waiting);
        }
        ended.is_some()
    }

    /// Has the request read again if it may have missed something; once, until it has.
    fn tell(&self, waiting: &mut Waiting) {
        if waiting.unknown_from > waiting.seen_at {
            waiting.seen_at = i64::MAX;
            self.wake(waiting);
        }
    }

    fn wake(&self, waiting: &Waiting) {
        let events = &self.members.context.events;
        events.wake(waiting.owner, &waiting.lock);
    }

    /// What a silent stream costs: looks at the next of the keys, and tells those who
    /// wait for one that has gone.
    pub(super) async fn look(&self, deadline: Deadline) -> Result<(), Failure> {
        let next = self.next_to_look_at();
        if next.is_empty() {
            return Ok(());
        }
        let began = self.members.time.now();
        let keys = next.iter().flat_map(|(_, keys)| keys);
        let found = created_at(&self.members, keys.map(|(key, _)| &**key), deadline).await?;
        for ((id, keys), found) in next.into_iter().zip(found.chunks(2)) {
            let mut both = keys.iter().zip(found);
            if both.all(|((_, created), found)| found.is_some_and(|there| there <= *created)) {
                continue;
            }
            if self.end(id) && self.inner.lock().last_response_at + PERIOD < began {
                self.silent.notify_one();
            }
        }
        Ok(())
    }

    /// Those who wait in turn, with the keys of each.
    fn next_to_look_at(&self) -> Vec<(i64, Keys)> {
        let mut inner = self.inner.lock();
        let last = inner.looked_at;
        let after = inner.waiting.range((Excluded(last), Unbounded));
        let next = after.chain(inner.waiting.range(..=last));
        let next = next.map(|(&id, waiting)| (id, waiting.keys.clone()));
        let next: Vec<_> = next.take(KEYS_AT_ONCE / 2).collect();
        inner.looked_at = next.last().map_or(0, |&(id, _)| id);
        next
    }

    /// Keeps the stream while somebody waits.
    pub(super) async fn run(self: Arc<Self>) {
        let time = &self.members.time;
        let mut backoff = Backoff::new(FIRST_PAUSE, LAST_PAUSE);
        loop {
            let Some((id, keys)) = self.first() else {
                self.changed.notified().await;
                continue;
            };
            let (member, began) = (self.members.current(), time.now());
            match self.in_time(self.open(&member, id, keys)).await {
                Some(stream) => {
                    self.serve(&member, stream, id).await;
                    // What it has not said, it never will.
                    let all = take(&mut self.inner.lock().waiting);
                    all.values().for_each(|waiting| self.wake(waiting));
                }
                None => self.members.leave(&member),
            }
            if time.now() >= began + LAST_PAUSE {
                backoff.reset();
            }
            backoff.wait(time).await;
        }
    }

    /// Who is first served: all others are to be too.
    fn first(&self) -> Option<(i64, Keys)> {
        let mut inner = self.inner.lock();
        inner.changed = inner.waiting.keys().copied().collect();
        let (&id, waiting) = inner.waiting.first_key_value()?;
        Some((id, waiting.keys.clone()))
    }

    async fn open(&self, member: &Arc<Member>, id: i64, keys: Keys) -> Result<WatchStream, Error> {
        let mut client = self.members.client(member).await?;
        let ([own, ahead], [(own_key, _), (key_ahead, _)]) = (watches_of(id), keys);
        let mut stream = client.watch(own_key, options(own)).await?;
        stream.watch(key_ahead, options(ahead)).await?;
        Ok(stream)
    }

    /// Serves a stream until it says no more.
    async fn serve(&self, member: &Arc<Member>, mut stream: WatchStream, first: i64) {
        // Those for whom the server has watches.
        let mut on_server = HashSet::from([first]);
        self.inner.lock().last_response_at = self.members.time.now();
        self.changed.notify_one();
        loop {
            tokio::select! {
                message = stream.message() => {
                    let Ok(Some(message)) = message else { return };
                    let (watch, created) = (message.watch_id(), message.created());
                    if message.canceled() && is_refused(watch, created, &mut on_server) {
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
                    self.hear(watch, made_at.map(ResponseHeader::revision), deleted_at);
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

    /// The server has made this watch, which tells of what is after this revision; or
    /// tells that a key of its name was deleted then.
    fn hear(&self, watch: i64, made_at: Option<i64>, deleted_at: Option<i64>) {
        let mut inner = self.inner.lock();
        inner.last_response_at = self.members.time.now();
        let (id, of_the_one_before) = (watch / 2, watch % 2 == 1);
        let Some(waiting) = inner.waiting.get_mut(&id) else {
            return;
        };
        let created = waiting.keys[usize::from(of_the_one_before)].1;
        if deleted_at.is_some_and(|deleted| deleted > created) {
            drop(inner);
            self.end(id);
        } else if let Some(made_at) = made_at {
            waiting.unknown_from = waiting.unknown_from.max(made_at);
            self.tell(waiting);
        }
    }

    /// Has the server watch for those who wait now, and for nobody else.
    async fn catch_up(
        &self,
        stream: &mut WatchStream,
        on_server: &mut HashSet<i64>,
    ) -> Result<(), Error> {
        let changed = take(&mut self.inner.lock().changed);
        for id in changed {
            let keys = self.inner.lock().waiting.get(&id).map(|it| it.keys.clone());
            match keys {
                Some(keys) if on_server.insert(id) => {
                    for ((key, _), watch) in keys.into_iter().zip(watches_of(id)) {
                        stream.watch(key, options(watch)).await?;
                    }
                }
                None if on_server.remove(&id) => {
                    for watch in watches_of(id) {
                        stream.cancel(watch).await?;
                    }
                }
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
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.watches.remove(self.id);
    }
}

/// The numbers of the watches for one who waits: of the own key, and of that before it.
fn watches_of(id: i64) -> [i64; 2] {
    [2 * id, 2 * id + 1]
}

/// Whether a message that a watch was cancelled means one that the server has, or is
/// to have: not one that we have cancelled ourselves.
fn is_refused(watch: i64, created: bool, on_server: &mut HashSet<i64>) -> bool {
    // Servers that are newer than 3.4 give a watch that they do not make the id -1
    // (`recvLoop` in `server/etcdserver/api/v3rpc/watch.go`).
    on_server.remove(&(watch / 2)) || created
}

/// A watch that begins now, and tells of deletions.
fn options(watch: i64) -> Option<WatchOptions> {
    let options = WatchOptions::new().with_watch_id(watch);
    Some(options.with_filters([WatchFilterType::NoPut]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Mode;
    use crate::stores::etcd::settings::Settings;

    const KEY: &str = "dlock/key/place";
    const AHEAD: &str = "dlock/key/ahead";

    /// Watches of a process that has asked no server yet.
    fn watches() -> Arc<Watches> {
        let settings = Settings::from_url("etcd://127.0.0.1").expect("a URL");
        Watches::new(Arc::new(Members::new(settings, crate::engine::context())))
    }

    fn keys(own: i64, ahead: i64) -> Keys {
        [(KEY.to_owned(), own), (AHEAD.to_owned(), ahead)]
    }

    /// One who has seen these keys then.
    fn listen(watches: &Arc<Watches>, keys: Keys, seen_at: i64) -> Listening {
        let mut listening = None;
        go_on(watches, &mut listening, keys, seen_at);
        listening.expect("it listens")
    }

    fn go_on(
        watches: &Arc<Watches>,
        listening: &mut Option<Listening>,
        keys: Keys,
        seen_at: i64,
    ) -> i64 {
        let request = Request::new("key", Mode::Write, Duration::from_secs(1));
        watches.keep_listening(listening, &request, keys, seen_at);
        listening.as_ref().expect("it listens").id
    }

    /// Whether it has to read again.
    fn is_told(watches: &Watches, listening: &Listening) -> bool {
        let inner = watches.inner.lock();
        let waiting = inner.waiting.get(&listening.id);
        waiting.is_none_or(|waiting| waiting.seen_at == i64::MAX)
    }

    #[tokio::test]
    async fn what_was_seen_before_the_watch_was_made_is_read_again() {
        let watches = watches();
        let mut listening = Some(listen(&watches, keys(5, 4), 7));
        let told = |it: &Option<Listening>| is_told(&watches, it.as_ref().expect("it listens"));
        assert!(!told(&listening), "not made yet");
        let [own, ahead] = watches_of(listening.as_ref().expect("it listens").id);
        watches.hear(ahead, Some(8), None);
        assert!(told(&listening));
        watches.hear(own, Some(7), None);
        go_on(&watches, &mut listening, keys(5, 4), 7);
        assert!(told(&listening), "by the other one");
        go_on(&watches, &mut listening, keys(5, 4), 8);
        assert!(!told(&listening));
        watches.hear(own, Some(8), None);
        assert!(!told(&listening));
    }

    #[tokio::test]
    async fn the_end_of_either_key_is_told() {
        let watches = watches();
        for number in [0, 1] {
            let listening = listen(&watches, keys(5, 4), 9);
            watches.hear(watches_of(listening.id)[number], None, Some(6));
            assert!(is_told(&watches, &listening));
            drop(listening);
            assert!(watches.inner.lock().waiting.is_empty());
        }
    }

    #[tokio::test]
    async fn a_key_of_the_same_name_is_not_the_same_key() {
        let watches = watches();
        let (old, new) = (
            listen(&watches, keys(9, 5), 9),
            listen(&watches, keys(10, 9), 9),
        );
        for listening in [&old, &new] {
            let [_, ahead] = watches_of(listening.id);
            watches.hear(ahead, Some(9), None);
            watches.hear(ahead, None, Some(7));
        }
        assert!(is_told(&watches, &old));
        assert!(!is_told(&watches, &new), "it was deleted before");
        watches.hear(watches_of(new.id)[1], None, Some(12));
        assert!(is_told(&watches, &new));
        assert!(watches.inner.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn one_who_listens_already_goes_on() {
        let watches = watches();
        let mut listening = Some(listen(&watches, keys(9, 5), 9));
        let first = listening.as_ref().expect("it listens").id;
        assert_eq!(go_on(&watches, &mut listening, keys(9, 5), 9), first);
        // Somebody else is ahead now.
        let second = go_on(&watches, &mut listening, keys(9, 7), 9);
        assert_ne!(second, first);
        assert_eq!(watches.inner.lock().waiting.len(), 1);
        // A watch ends: others are needed.
        assert!(watches.end(second));
        assert_ne!(go_on(&watches, &mut listening, keys(9, 7), 9), second);
        let listening = listening.expect("it listens");
        assert!(!is_told(&watches, &listening));
    }

    #[tokio::test]
    async fn keys_are_looked_at_in_turn() {
        let watches = watches();
        let at_once = KEYS_AT_ONCE / 2;
        let some = at_once / 2;
        let all: Vec<_> = (0..at_once + some)
            .map(|_| listen(&watches, keys(9, 5), 9))
            .collect();
        let ids = |from: usize, to: usize| all[from..to].iter().map(|it| it.id);
        let looked = || watches.next_to_look_at().into_iter().map(|(id, _)| id);
        assert!(looked().eq(ids(0, at_once)));
        assert!(looked().eq(ids(at_once, all.len()).chain(ids(0, some))));
    }

    #[test]
    fn a_watch_that_was_refused_is_known_by_any_version() {
        let [own, ahead] = watches_of(7);
        let ours = || HashSet::from([7]);
        for watch in [own, ahead] {
            assert!(is_refused(watch, true, &mut ours()), "3.4");
            assert!(is_refused(watch, false, &mut ours()), "ended later");
        }
        assert!(is_refused(-1, true, &mut ours()), "newer servers");
        let [gone, _] = watches_of(8);
        assert!(!is_refused(gone, false, &mut ours()), "ended by ourselves");
    }
}
