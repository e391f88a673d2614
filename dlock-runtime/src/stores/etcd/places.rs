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
pub(super) struct Places(Mutex<Inner>);

struct Inner {
    /// In all names, so that no other process has them.
    maker: Owner,
    /// Those queues in which a name is taken.
    queues: HashMap<Box<str>, Numbers>,
}

/// The names in a queue.
#[derive(Default)]
struct Numbers {
    next: u32,
    free: BTreeSet<u32>,
}

/// The name of a key that one request has, and what the request writes into it.
pub(super) struct Name {
    key: String,
    value: String,
    taken: Option<Taken>,
}

struct Taken {
    places: Arc<Places>,
    maker: Owner,
    /// How much of the key is the queue's.
    queue: usize,
    number: u32,
}

impl Places {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            maker: Owner::unique(),
            queues: HashMap::new(),
        })))
    }

    /// A name in the queue whose keys begin with this, for the request that
    /// writes `value`, which nobody else does.
    pub(super) fn take(self: &Arc<Self>, queue: String, value: String) -> Arc<Name> {
        let mut inner = self.inner();
        let maker = inner.maker;
        let number = match inner.queues.get_mut(&*queue) {
            Some(numbers) => numbers.take(),
            None => {
                let numbers = inner.queues.entry(queue.as_str().into());
                numbers.or_default().take()
            }
        };
        drop(inner);
        let taken = Taken {
            places: Arc::clone(self),
            maker,
            queue: queue.len(),
            number,
        };
        Arc::new(Name {
            key: format!("{queue}{maker}.{number:x}"),
            value,
            taken: Some(taken),
        })
    }

    /// Nobody gets a name any more that somebody had until now.
    pub(super) fn start_anew(&self) {
        self.inner().start_anew();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn start_anew(&mut self) {
        self.maker = Owner::unique();
        self.queues = HashMap::new();
    }
}

impl Numbers {
    fn take(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Whether no other is taken.
    fn give_back(&mut self, number: u32) -> bool {
        self.free.insert(number);
        self.free.len() == self.next as usize
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

    /// Somebody else has it: a process that was cloned has the names of the one
    /// that it is a copy of.
    pub(super) fn is_anothers(&self) {
        let Some(taken) = &self.taken else { return };
        let mut inner = taken.places.inner();
        // Many may find out at the same time.
        if inner.maker == taken.maker {
            inner.start_anew();
        }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let Some(taken) = &self.taken else { return };
        let mut inner = taken.places.inner();
        if inner.maker != taken.maker {
            return;
        }
        let queue = &self.key[..taken.queue];
        let numbers = inner.queues.get_mut(queue);
        if numbers.is_some_and(|numbers| numbers.give_back(taken.number)) {
            inner.queues.remove(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Arc<Places>, queue: &str) -> Arc<Name> {
        places.take(queue.to_owned(), "request".to_owned())
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
        assert_eq!(places.inner().queues.len(), 1);
        drop(names);
        assert!(places.inner().queues.is_empty());
        let other = take(&places, "b/");
        places.start_anew();
        let again = take(&places, "b/");
        assert_ne!(other.key(), again.key());
        drop(other);
        assert_eq!(places.inner().queues.len(), 1, "that of the new names");
        drop(again);
        assert!(places.inner().queues.is_empty());
    }

    #[test]
    fn a_name_that_is_anothers_is_left_once() {
        let places = Places::new();
        let (one, other) = (take(&places, "a/"), take(&places, "a/"));
        one.is_anothers();
        let new = take(&places, "a/").key().to_owned();
        assert!(new != one.key() && new != other.key());
        other.is_anothers();
        drop(one);
        drop(other);
        assert_eq!(take(&places, "a/").key(), new);
    }
}
