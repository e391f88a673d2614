//! Who of this process waits for what, and is woken when it may have ended. One watch
//! [stream](super::stream) serves all of them.
//!
//! What comes over the stream is a hint: a waiter that is woken reads again. So a watch that was
//! cancelled, compacted or broken costs its waiters one read. A stream that has fallen silent is
//! found out by looks: a hundred keys are looked at every second, in turn.
//!
//! A waiter for permits, or behind one, may get the lock when any of the places before it goes; and
//! when one of these gets the lock, nobody writes anything. So all such waiters of a lock in this
//! process share one watch, of the whole queue. It has the first of them read: none gets the lock
//! before one that came earlier. What the first reads counts for all of them. When it has left, the
//! next is the first, and reads if something has happened since it was known to wait.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::members::{KEYS_AT_ONCE, Members};
use super::names::Range;
use super::waiting::{Ahead, Awaited, Deleted, Queue, READS, State, Waiting};
use crate::backend::Request;
use crate::deadline::Deadline;
use crate::store::Failure;
use crate::sync::Mutex;

/// How often some of the keys are looked at: the default of `Store::pace`.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) struct Watches {
    pub(super) members: Arc<Members>,
    pub(super) inner: Mutex<State>,
    /// Notified when there is something for the stream's task to do.
    pub(super) changed: Notify,
    /// Notified when the stream was found to be silent.
    pub(super) silent: Notify,
}

/// A waiter, until this is dropped.
pub(super) struct Listening {
    watches: Arc<Watches>,
    id: i64,
}

impl Watches {
    pub(super) fn new(members: Arc<Members>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(State {
                last_id: 0,
                waiting: BTreeMap::new(),
                queues: BTreeMap::new(),
                queue_ids: HashMap::new(),
                changed: Vec::new(),
                looked_at: 0,
                last_response_at: members.time.now(),
            }),
            members,
            changed: Notify::new(),
            silent: Notify::new(),
        })
    }

    /// From here on, the request is woken when what it waits for may have ended. It has seen that
    /// at this revision. If `listening` is for the same already, it goes on.
    pub(super) fn keep_listening(
        self: &Arc<Self>,
        listening: &mut Option<Listening>,
        request: &Request,
        awaited: Awaited,
        range: Range,
        seen_at: i64,
    ) {
        let mut inner = self.inner.lock();
        let same = listening.as_ref().map(|it| it.id);
        let waiting = same.and_then(|id| Some((id, inner.waiting.get_mut(&id)?)));
        if let Some((id, same)) = waiting.filter(|(_, it)| it.awaited == awaited) {
            (same.seen_at, same.was_looked_at) = (seen_at, false);
            return self.tell(&mut inner, id);
        }
        let id = inner.new_id();
        let created = awaited.own.1;
        let mut waiting = Waiting {
            owner: request.owner,
            lock: Arc::clone(&request.key),
            awaited,
            seen_at,
            unknown_from: 0,
            was_looked_at: false,
        };
        if waiting.awaited.ahead == Ahead::Some {
            let queue = inner.queue_of(&request.key, range);
            queue.members.insert(created, id);
            waiting.unknown_from = queue.unknown_from;
        } else {
            inner.changed.push(id);
        }
        inner.waiting.insert(id, waiting);
        self.tell(&mut inner, id);
        drop(inner);
        self.changed.notify_one();
        let watches = Arc::clone(self);
        *listening = Some(Listening { watches, id });
    }

    /// A queue was read, as a whole or from its beginning. `holding` and `waiting` are the
    /// create-revisions of the places that hold the lock, and of those that wait. This counts for
    /// all waiters of this process.
    pub(super) fn seen(&self, lock: &str, holding: &[i64], waiting: &[i64], seen_at: i64) {
        let mut inner = self.inner.lock();
        let Some(queue) = inner.queue_ids.get(lock).copied() else {
            return;
        };
        let (mut had, mut waits) = (Vec::new(), Vec::new());
        if let Some(queue) = inner.queues.get(&queue) {
            let id = |created| queue.members.get(created).copied();
            had.extend(holding.iter().filter_map(id));
            // Nobody gets the lock before one that waits, so all behind that one wait too.
            let first = waiting.first().into_iter();
            waits.extend(first.flat_map(|&first| queue.members.range(first..).map(|it| *it.1)));
        }
        let silent_since = self.members.time.now().checked_sub(PERIOD);
        let is_silent = silent_since.is_some_and(|since| inner.last_response_at < since);
        for id in had {
            if let Some(waiting) = inner.waiting.get_mut(&id) {
                if waiting.was_looked_at && is_silent {
                    self.silent.notify_one();
                }
                waiting.was_looked_at = false;
                self.start_reading(waiting);
            }
        }
        for id in waits {
            if let Some(waiting) = inner.waiting.get_mut(&id)
                && waiting.seen_at != READS
            {
                waiting.seen_at = waiting.seen_at.max(seen_at);
            }
        }
    }

    /// Removes a waiter, and returns it if it was there.
    fn remove(&self, id: i64) -> Option<Waiting> {
        let mut inner = self.inner.lock();
        let removed = inner.waiting.remove(&id)?;
        if removed.awaited.ahead == Ahead::Some {
            let next = inner.leaves_queue(id, &removed);
            next.into_iter()
                .for_each(|next| self.tell(&mut inner, next));
        } else {
            inner.changed.push(id);
        }
        drop(inner);
        self.changed.notify_one();
        Some(removed)
    }

    /// One of the waiter's keys is not there any more, or its watch. Wakes the waiter, and returns
    /// whether it was there.
    fn end(&self, id: i64) -> bool {
        let ended = self.remove(id);
        if let Some(waiting) = &ended {
            self.wake(waiting);
        }
        ended.is_some()
    }

    /// Has the waiter read again if it may have missed something: once, until it has done so. In a
    /// queue, only the first waiter reads.
    fn tell(&self, inner: &mut State, id: i64) {
        if inner.is_first(id)
            && let Some(waiting) = inner.waiting.get_mut(&id)
            && waiting.unknown_from > waiting.seen_at
        {
            self.start_reading(waiting);
        }
    }

    fn start_reading(&self, waiting: &mut Waiting) {
        if waiting.seen_at != READS {
            waiting.seen_at = READS;
            self.wake(waiting);
        }
    }

    pub(super) fn wake(&self, waiting: &Waiting) {
        let events = &self.members.context.events;
        events.wake(waiting.owner, &waiting.lock);
    }

    /// Makes up for a silent stream: looks at the next of the keys, and wakes the waiters whose
    /// keys have gone. The first waiter of a queue is told to read by itself.
    pub(super) async fn look(&self, deadline: Deadline) -> Result<(), Failure> {
        let next = self.next_to_look_at();
        if next.is_empty() {
            return Ok(());
        }
        let began = self.members.time.now();
        let keys = next.iter().flat_map(|(_, keys)| keys);
        let found = self
            .members
            .created_at(keys.map(|(key, _)| &**key), deadline)
            .await?;
        let mut found = found.into_iter();
        for (id, keys) in next {
            let both: Vec<_> = keys.iter().zip(&mut found).collect();
            let is_there = |&((_, created), found): &(&(String, i64), Option<i64>)| {
                found.is_some_and(|there| there <= *created)
            };
            if both.iter().all(is_there) {
                self.start_looking(id);
            } else if self.end(id) && self.inner.lock().last_response_at + PERIOD < began {
                self.silent.notify_one();
            }
        }
        Ok(())
    }

    fn start_looking(&self, id: i64) {
        let mut inner = self.inner.lock();
        let is_first = inner.is_first(id);
        if let Some(waiting) = inner.waiting.get_mut(&id)
            && is_first
            && waiting.awaited.ahead == Ahead::Some
        {
            waiting.was_looked_at = true;
            self.start_reading(waiting);
        }
    }

    /// The waiters that are next in turn, with the keys of each.
    fn next_to_look_at(&self) -> Vec<(i64, Vec<(String, i64)>)> {
        let mut inner = self.inner.lock();
        let last = inner.looked_at;
        let after = inner.waiting.range((Excluded(last), Unbounded));
        let next = after.chain(inner.waiting.range(..=last));
        let next = next.map(|(&id, waiting)| (id, waiting.awaited.keys()));
        let next: Vec<_> = next.take(KEYS_AT_ONCE / 2).collect();
        inner.looked_at = next.last().map_or(0, |&(id, _)| id);
        next
    }

    /// The server has made this watch, which reports what comes after revision `made_at`; or it
    /// reports that these keys were deleted.
    pub(super) fn hear(&self, watch: i64, made_at: Option<i64>, deleted: Vec<Deleted>) {
        let mut inner = self.inner.lock();
        inner.last_response_at = self.members.time.now();
        let (id, of_the_one_before) = (watch / 2, watch % 2 == 1);
        if inner.queues.contains_key(&id) {
            let ended = inner.heard_of_queue(id, made_at, &deleted);
            if let Some(first) = inner.queues.get(&id).and_then(Queue::first) {
                self.tell(&mut inner, first);
            }
            drop(inner);
            for id in ended {
                self.end(id);
            }
            return;
        }
        let Some(waiting) = inner.waiting.get_mut(&id) else {
            return;
        };
        let created = match &waiting.awaited.ahead {
            Ahead::One(_, created) if of_the_one_before => *created,
            _ => waiting.awaited.own.1,
        };
        // An earlier deletion was that of another key with the same name.
        if deleted.iter().any(|deleted| deleted.at > created) {
            drop(inner);
            self.end(id);
        } else if let Some(made_at) = made_at {
            waiting.unknown_from = waiting.unknown_from.max(made_at);
            self.tell(&mut inner, id);
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.watches.remove(self.id);
    }
}

/// The ids of the watches of a waiter: of its own key, and of the key before it. The watch of a
/// queue has the first id.
pub(super) fn watches_of(id: i64) -> [i64; 2] {
    [2 * id, 2 * id + 1]
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
        let settings = Settings::from_url("etcd://127.0.0.1", None).expect("a URL");
        Watches::new(Arc::new(Members::new(settings, crate::engine::context())))
    }

    fn keys(own: i64, ahead: i64) -> Awaited {
        Awaited {
            own: (KEY.to_owned(), own),
            ahead: Ahead::One(AHEAD.to_owned(), ahead),
        }
    }

    /// For a waiter whose key was created at this revision.
    fn queued(own: i64) -> Awaited {
        Awaited {
            own: (format!("{KEY}{own}"), own),
            ahead: Ahead::Some,
        }
    }

    /// The deletion of a key at a revision, with its create-revision.
    fn gone(key: &str, at: i64, created: i64) -> Vec<Deleted> {
        let key = key.to_owned();
        let created = Some(created);
        vec![Deleted { key, at, created }]
    }

    /// A waiter that has seen these keys at this revision.
    fn listen(watches: &Arc<Watches>, awaited: Awaited, seen_at: i64) -> Listening {
        let mut listening = None;
        go_on(watches, &mut listening, awaited, seen_at);
        listening.expect("it listens")
    }

    fn go_on(
        watches: &Arc<Watches>,
        listening: &mut Option<Listening>,
        awaited: Awaited,
        seen_at: i64,
    ) -> i64 {
        let request = Request::new("key", Mode::Write, Duration::from_secs(1));
        let range = (b"dlock/key/".to_vec(), b"dlock/key0".to_vec());
        watches.keep_listening(listening, &request, awaited, range, seen_at);
        listening.as_ref().expect("it listens").id
    }

    /// Whether it has been told to read again, or is not there any more.
    fn is_told(watches: &Watches, listening: &Listening) -> bool {
        let inner = watches.inner.lock();
        let waiting = inner.waiting.get(&listening.id);
        waiting.is_none_or(|waiting| waiting.seen_at == READS)
    }

    #[tokio::test]
    async fn what_was_seen_before_the_watch_was_made_is_read_again() {
        let watches = watches();
        let mut listening = Some(listen(&watches, keys(5, 4), 7));
        let told = |it: &Option<Listening>| is_told(&watches, it.as_ref().expect("it listens"));
        assert!(!told(&listening), "not made yet");
        let [own, ahead] = watches_of(listening.as_ref().expect("it listens").id);
        watches.hear(ahead, Some(8), Vec::new());
        assert!(told(&listening));
        watches.hear(own, Some(7), Vec::new());
        go_on(&watches, &mut listening, keys(5, 4), 7);
        assert!(told(&listening), "by the other one");
        go_on(&watches, &mut listening, keys(5, 4), 8);
        assert!(!told(&listening));
        watches.hear(own, Some(8), Vec::new());
        assert!(!told(&listening));
    }

    #[tokio::test]
    async fn the_end_of_either_key_is_told() {
        let watches = watches();
        for number in [0, 1] {
            let listening = listen(&watches, keys(5, 4), 9);
            watches.hear(watches_of(listening.id)[number], None, gone(AHEAD, 6, 0));
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
            watches.hear(ahead, Some(9), Vec::new());
            watches.hear(ahead, None, gone(AHEAD, 7, 0));
        }
        assert!(is_told(&watches, &old));
        assert!(!is_told(&watches, &new), "it was deleted before");
        watches.hear(watches_of(new.id)[1], None, gone(AHEAD, 12, 0));
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
        // A watch has ended, so new ones are needed.
        assert!(watches.end(second));
        assert_ne!(go_on(&watches, &mut listening, keys(9, 7), 9), second);
        let listening = listening.expect("it listens");
        assert!(!is_told(&watches, &listening));
    }

    /// The first waiter reads for all; when it has left, the next does.
    #[tokio::test]
    async fn one_of_those_who_wait_for_several_is_told() {
        let watches = watches();
        let mut all: Vec<_> = [20, 21, 22]
            .map(|own| listen(&watches, queued(own), 30))
            .into_iter()
            .collect();
        let queue = *watches.inner.lock().queues.keys().next().expect("a queue");
        let [watch, _] = watches_of(queue);
        let told =
            |all: &[Listening]| -> Vec<_> { all.iter().map(|it| is_told(&watches, it)).collect() };
        watches.hear(watch, Some(30), Vec::new());
        watches.hear(watch, None, gone("dlock/key/z", 31, 29));
        assert_eq!(told(&all), [false; 3], "who came later is in nobody's way");
        watches.hear(watch, None, gone("dlock/key/h", 32, 19));
        assert_eq!(told(&all), [true, false, false]);
        // The first gets the lock, and the others know that they do not.
        watches.seen("key", &[18, 20], &[21, 22], 32);
        drop(all.remove(0));
        assert_eq!(told(&all), [false; 2]);
        // It leaves without having read, so the next reads.
        watches.hear(watch, None, gone("dlock/key/h", 33, 18));
        drop(all.remove(0));
        assert_eq!(told(&all), [true]);
        drop(all);
        let inner = watches.inner.lock();
        assert!(inner.waiting.is_empty() && inner.queues.is_empty() && inner.queue_ids.is_empty());
    }

    #[tokio::test]
    async fn all_who_got_in_are_told_at_once() {
        let watches = watches();
        let all = [20, 21, 22].map(|own| listen(&watches, queued(own), 30));
        watches.seen("key", &[20, 21], &[22], 31);
        assert_eq!(
            all.each_ref().map(|it| is_told(&watches, it)),
            [true, true, false]
        );
    }

    #[tokio::test]
    async fn what_happened_before_one_came_to_the_queue_is_read_again() {
        let watches = watches();
        let first = listen(&watches, queued(20), 20);
        let queue = *watches.inner.lock().queues.keys().next().expect("a queue");
        let [watch, _] = watches_of(queue);
        watches.hear(watch, Some(21), Vec::new());
        assert!(is_told(&watches, &first), "the watch began later");
        let second = listen(&watches, queued(22), 22);
        watches.hear(watch, None, gone("dlock/key/h", 25, 19));
        // Its answer took longer than the report of the watch.
        let third = listen(&watches, queued(23), 23);
        drop(first);
        assert!(is_told(&watches, &second) && !is_told(&watches, &third));
        drop(second);
        assert!(is_told(&watches, &third));
    }

    #[tokio::test]
    async fn whose_own_place_is_gone_is_told_wherever_it_stands() {
        let watches = watches();
        let all = [20, 21].map(|own| listen(&watches, queued(own), 30));
        let queue = *watches.inner.lock().queues.keys().next().expect("a queue");
        let [watch, _] = watches_of(queue);
        watches.hear(watch, None, gone(&format!("{KEY}21"), 20, 5));
        assert!(!is_told(&watches, &all[1]), "another of the same name");
        watches.hear(watch, None, gone(&format!("{KEY}21"), 33, 21));
        assert!(!is_told(&watches, &all[0]) && is_told(&watches, &all[1]));
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
}
