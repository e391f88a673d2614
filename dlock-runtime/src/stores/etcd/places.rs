//! The names of places in queues: few, and used again.
//!
//! A deleted key stays in the server's index until the store is compacted, and
//! every look at a queue walks over all that were ever in it (`unsafeVisit` in
//! `server/storage/mvcc/index.go`). So a request takes the lowest name that no
//! other request of this process has in that queue, and writes into it who it is.
//! A lone task always has the same one.
//!
//! A name is free again when its [`Name`] is dropped, which is kept until
//! the key is known to be deleted; and if a request may yet be done that writes
//! it, until the lease has ended that it would be attached to. Where that cannot
//! be known, all names to come are new ones.
//!
//! That is thrift, and locks are right without it: no request takes a key for its
//! own that says otherwise, and none deletes such a key.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::Owner;

/// The names that requests of one backend have.
pub(super) struct Places(Mutex<Arc<Maker>>);

/// Whose names they are, until all names to come are new ones.
struct Maker {
    /// In all names, so that no other process has them.
    id: Owner,
    /// The numbers that are taken in each queue in which one is.
    taken: Mutex<HashMap<Box<str>, BTreeSet<u32>>>,
}

/// The name of a key that one request has, and what the request writes into it.
pub(super) struct Name {
    key: String,
    value: String,
    taken: Option<Taken>,
}

struct Taken {
    maker: Arc<Maker>,
    /// How much of the key is the queue's.
    queue: usize,
    number: u32,
}

impl Places {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Maker::new()))
    }

    /// A name in the queue whose keys begin with this, for the request that
    /// writes `value`, which nobody else does.
    pub(super) fn take(&self, queue: &str, value: String) -> Arc<Name> {
        let maker = Arc::clone(&lock(&self.0));
        let number = maker.take(queue);
        Arc::new(Name {
            key: format!("{queue}{}.{number:x}", maker.id),
            value,
            taken: Some(Taken {
                maker,
                queue: queue.len(),
                number,
            }),
        })
    }

    /// Nobody gets a name any more that somebody had until now.
    pub(super) fn start_anew(&self) {
        *lock(&self.0) = Maker::new();
    }

    /// Somebody else has the name: a process that was cloned has the names of the one
    /// that it is a copy of.
    pub(super) fn are_anothers(&self, name: &Name) {
        let Some(taken) = &name.taken else { return };
        let mut maker = lock(&self.0);
        // Many may find out at the same time.
        if Arc::ptr_eq(&maker, &taken.maker) {
            *maker = Maker::new();
        }
    }
}

impl Maker {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            id: Owner::unique(),
            taken: Mutex::default(),
        })
    }

    fn take(&self, queue: &str) -> u32 {
        let mut all = lock(&self.taken);
        let taken = match all.get_mut(queue) {
            Some(taken) => taken,
            None => all.entry(queue.into()).or_default(),
        };
        // They are in order.
        let gap = (0..)
            .zip(taken.iter().copied())
            .find(|(at, number)| at != number);
        let after = taken.last().map_or(0, |last| last + 1);
        let lowest = gap.map_or(after, |(at, _)| at);
        taken.insert(lowest);
        lowest
    }
}

impl Name {
    /// One that comes from elsewhere, and is nobody else's ever.
    pub(super) fn given(key: String, value: String) -> Arc<Self> {
        Arc::new(Self {
            key,
            value,
            taken: None,
        })
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Whether the key is that of a place in a queue, as it is shown.
    pub(super) fn is_of(&self, place: &str) -> bool {
        let queue = self.key.strip_suffix(place);
        queue.is_some_and(|queue| queue.ends_with('/'))
    }

    pub(super) fn value(&self) -> &str {
        &self.value
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let Some(taken) = &self.taken else { return };
        let mut all = lock(&taken.maker.taken);
        let queue = &self.key[..taken.queue];
        let numbers = all.get_mut(queue);
        if numbers.is_some_and(|numbers| numbers.remove(&taken.number) && numbers.is_empty()) {
            all.remove(queue);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Places, queue: &str) -> Arc<Name> {
        places.take(queue, "request".to_owned())
    }

    fn queues(places: &Places) -> usize {
        lock(&lock(&places.0).taken).len()
    }

    #[test]
    fn a_name_is_used_again_when_nobody_has_it() {
        let places = Places::new();
        let (first, second) = (take(&places, "a/"), take(&places, "a/"));
        assert_ne!(first.key(), second.key());
        let (key, kept) = (first.key().to_owned(), Arc::clone(&first));
        drop(first);
        let third = take(&places, "a/");
        assert!(third.key() != key && third.key() != second.key());
        drop(kept);
        assert_eq!(take(&places, "a/").key(), key);
        assert_ne!(take(&places, "b/").key(), key);
    }

    #[test]
    fn nothing_is_kept_of_a_queue_without_requests() {
        let places = Places::new();
        let names: Vec<_> = (0..100).map(|_| take(&places, "a/")).collect();
        assert_eq!(queues(&places), 1);
        drop(names);
        assert_eq!(queues(&places), 0);
        let other = take(&places, "b/");
        places.start_anew();
        let again = take(&places, "b/");
        assert_ne!(other.key(), again.key());
        drop(other);
        assert_eq!(queues(&places), 1, "that of the new names");
        drop(again);
        assert_eq!(queues(&places), 0);
    }

    #[test]
    fn a_name_that_is_anothers_is_left_once() {
        let places = Places::new();
        let (one, other) = (take(&places, "a/"), take(&places, "a/"));
        places.are_anothers(&one);
        let new = take(&places, "a/").key().to_owned();
        assert!(new != one.key() && new != other.key());
        places.are_anothers(&other);
        drop(one);
        drop(other);
        assert_eq!(take(&places, "a/").key(), new);
    }
}
