//! Who waits in this process: for which keys, and in which queues.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;
use std::sync::Arc;
use std::time::Instant;

use super::names::Range;
use crate::backend::Owner;

/// Of one who is to read, and has not: it need not be told again.
pub(super) const READS: i64 = i64::MAX;

/// Who has to go before a request gets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    /// This one at least, which was created then.
    One(String, i64),
    /// One or several of those before it, who hold the lock or wait for it.
    Some,
}

/// All who wait in this process.
pub(super) struct State {
    pub(super) last_id: i64,
    pub(super) waiting: BTreeMap<i64, Waiting>,
    /// The queues of those who wait for [`Ahead::Some`], and their numbers by the locks.
    pub(super) queues: BTreeMap<i64, Queue>,
    pub(super) queue_ids: HashMap<Arc<str>, i64>,
    /// Who has come or gone since the stream's task looked.
    pub(super) changed: Vec<i64>,
    /// Whose keys were looked at last.
    pub(super) looked_at: i64,
    /// When the stream last said something.
    pub(super) last_response_at: Instant,
}

/// A request that waits for the end of its own key, and of what is before it. Where that
/// is one key, the watch of each has a number of its own (`watches_of`).
pub(super) struct Waiting {
    pub(super) owner: Owner,
    pub(super) lock: Arc<str>,
    pub(super) awaited: Awaited,
    /// The revision at which it has seen them.
    pub(super) seen_at: i64,
    /// If it has seen them at a lower revision than this, it has to read again: what was
    /// before is not told by the watches.
    pub(super) unknown_from: i64,
    /// It was told to read by a look, and not by a watch.
    pub(super) was_looked_at: bool,
}

/// What a request waits for.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Awaited {
    /// Its key, with the revision at which that was created. Another one of the same name is
    /// another key: that of a session of Go's `concurrency.Mutex` that queues again, or of
    /// a request of ours.
    pub(super) own: (String, i64),
    pub(super) ahead: Ahead,
}

/// A queue that is watched as a whole, for those of its places who wait for several.
pub(super) struct Queue {
    pub(super) range: Range,
    /// By when their keys were created, which is their order.
    pub(super) members: BTreeMap<i64, i64>,
    /// What was before this revision, who comes now may not have been told.
    pub(super) unknown_from: i64,
}

/// A key that was deleted.
pub(super) struct Deleted {
    pub(super) key: String,
    pub(super) at: i64,
    /// When it was created, if the server still knows.
    pub(super) created: Option<i64>,
}

impl State {
    pub(super) fn new_id(&mut self) -> i64 {
        self.last_id += 1;
        self.last_id
    }

    /// The queue of a lock, which is watched from now on.
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

    /// Who comes first now of those who wait for several, if that has changed.
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

    /// Whether nobody is before it of those who wait for several.
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

    /// Notes what the watch of a queue has told. Whose own keys are gone.
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
            // Who came later is not in its way.
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
