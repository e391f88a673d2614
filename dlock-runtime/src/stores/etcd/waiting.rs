//! The waiters of this process: the keys and queues that they wait for.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;
use std::sync::Arc;
use std::time::Instant;

use super::names::Range;
use crate::backend::Owner;

/// The `seen_at` of a waiter that has been told to read, and has not done so: it need not be told
/// again.
pub(super) const READS: i64 = i64::MAX;

/// What has to go before a request gets the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// At least this key, which has this create-revision.
    One(String, i64),
    /// One or more of the places before it, which hold the lock or wait for it.
    Some,
}

/// All waiters of this process.
pub(super) struct State {
    pub(super) last_id: i64,
    pub(super) waiting: BTreeMap<i64, Waiting>,
    /// The queues of waiters for [`Ahead::Some`], and their ids by the keys of the locks.
    pub(super) queues: BTreeMap<i64, Queue>,
    pub(super) queue_ids: HashMap<Arc<str>, i64>,
    /// The waiters and queues that have come or gone since the stream's task looked.
    pub(super) changed: Vec<i64>,
    /// The waiter whose keys were looked at last.
    pub(super) looked_at: i64,
    /// When something last came over the stream.
    pub(super) last_response_at: Instant,
}

/// A request that waits for the end of its own key, or of what is before it. If that is a single
/// key, there is a watch for each of the two (`watches_of`).
pub(super) struct Waiting {
    pub(super) owner: Owner,
    pub(super) lock: Arc<str>,
    pub(super) awaited: Awaited,
    /// The revision at which it has seen these keys.
    pub(super) seen_at: i64,
    /// The watches report only what comes after this revision. A waiter that has seen the keys at a
    /// lower one has to read again.
    pub(super) unknown_from: i64,
    /// A look has told it to read, and not a watch.
    pub(super) was_looked_at: bool,
}

/// What a request waits for.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Awaited {
    /// Its key, with its create-revision. A key of the same name with another one is another key:
    /// that of a session of Go's `concurrency.Mutex` that queues again, or of another request of
    /// ours.
    pub(super) own: (String, i64),
    pub(super) ahead: Ahead,
}

/// A queue that is watched as a whole, for the waiters that wait for one or more of its places.
pub(super) struct Queue {
    pub(super) range: Range,
    /// The waiters, by the create-revisions of their keys, which is their order.
    pub(super) members: BTreeMap<i64, i64>,
    /// A waiter that comes now may not have been told of what was before this revision.
    pub(super) unknown_from: i64,
}

/// A key that was deleted.
pub(super) struct Deleted {
    pub(super) key: String,
    pub(super) at: i64,
    /// Its create-revision, if the server still knows it.
    pub(super) created: Option<i64>,
}

impl State {
    pub(super) fn new_id(&mut self) -> i64 {
        self.last_id += 1;
        self.last_id
    }

    /// The queue of a lock. It is watched from now on.
    pub(super) fn queue_of(&mut self, lock: &Arc<str>, range: Range) -> &mut Queue {
        let id = match self.queue_ids.get(lock) {
            Some(&id) => id,
            None => {
                let id = self.new_id();
                self.queue_ids.insert(Arc::clone(lock), id);
                self.changed.push(id);
                id
            }
        };
        self.queues.entry(id).or_insert_with(|| Queue {
            range,
            members: BTreeMap::new(),
            unknown_from: 0,
        })
    }

    /// Removes a waiter from its queue. Returns the waiter that is the first now, if that has
    /// changed.
    pub(super) fn leaves_queue(&mut self, id: i64, waiting: &Waiting) -> Option<i64> {
        let queue_id = *self.queue_ids.get(&waiting.lock)?;
        let queue = self.queues.get_mut(&queue_id)?;
        let was_first = queue.first() == Some(id);
        let created = waiting.awaited.own.1;
        if queue.members.get(&created) == Some(&id) {
            queue.members.remove(&created);
        }
        let next = queue.first();
        if next.is_none() {
            self.queues.remove(&queue_id);
            self.queue_ids.remove(&waiting.lock);
            self.changed.push(queue_id);
        }
        next.filter(|_| was_first)
    }

    /// Whether no other waiter of this process is ahead in the same queue. Also true for a waiter
    /// that waits for a single key.
    pub(super) fn is_first(&self, id: i64) -> bool {
        let is_alone = |waiting: &Waiting| waiting.awaited.ahead != Ahead::Some;
        if self.waiting.get(&id).is_none_or(is_alone) {
            return true;
        }
        let lock = self.waiting.get(&id).map(|waiting| &waiting.lock);
        let queue = lock.and_then(|lock| self.queue_ids.get(lock));
        let queue = queue.and_then(|queue| self.queues.get(queue));
        queue.and_then(Queue::first) == Some(id)
    }

    /// Records what the watch of a queue has reported. Returns the waiters whose own keys are gone.
    pub(super) fn heard_of_queue(
        &mut self,
        id: i64,
        made_at: Option<i64>,
        deleted: &[Deleted],
    ) -> Vec<i64> {
        let Some(queue) = self.queues.get_mut(&id) else {
            return Vec::new();
        };
        let last = deleted
            .iter()
            .map(|deleted| deleted.at)
            .chain(made_at)
            .max();
        queue.unknown_from = queue.unknown_from.max(last.unwrap_or(0));
        let mut ended = Vec::new();
        for (&created, &member) in &queue.members {
            let Some(waiting) = self.waiting.get_mut(&member) else {
                continue;
            };
            let is_own = |it: &&Deleted| it.key == waiting.awaited.own.0 && it.at > created;
            if deleted.iter().any(|it| is_own(&it)) {
                ended.push(member);
            }
            // A place that came later is not in its way.
            let before = deleted
                .iter()
                .filter(|it| it.created.is_none_or(|it| it < created));
            let last = before.map(|it| it.at).chain(made_at).max();
            waiting.unknown_from = waiting.unknown_from.max(last.unwrap_or(0));
        }
        ended
    }

    pub(super) fn forget_all(&mut self) -> BTreeMap<i64, Waiting> {
        self.queues.clear();
        self.queue_ids.clear();
        take(&mut self.waiting)
    }
}

impl Queue {
    pub(super) fn first(&self) -> Option<i64> {
        self.members.values().next().copied()
    }
}

impl Awaited {
    pub(super) fn keys(&self) -> Vec<(String, i64)> {
        let ahead = match &self.ahead {
            Ahead::One(key, created) => Some((key.clone(), *created)),
            Ahead::Some => None,
        };
        [self.own.clone()].into_iter().chain(ahead).collect()
    }
}
