//! The names of places in queues: few, and used again.
//!
//! A deleted key stays in the server's index until the store is compacted, and every look at a
//! queue walks over all keys that were ever in it (`unsafeVisit` in
//! `server/storage/mvcc/index.go`). So a request takes the lowest name that no other request of
//! this process has in that queue, and writes into the key who it is. A lone task always has the
//! same name.
//!
//! A name is free again when its [`Name`] is dropped. It is kept until the key is known to be
//! deleted. If a request that writes the key may still be run, the name is kept until the lease has
//! ended to which the key would be attached.
//!
//! This only saves work; no lock relies on it. No request takes a key for its own, or deletes it,
//! if the key says otherwise. A request that finds such a key at its name takes another name, and
//! so do all requests after it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::backend::Owner;
use crate::sync::Mutex;

/// The names that requests of one backend have.
#[derive(Clone)]
pub(super) struct Places(Arc<Mutex<Taken>>);

struct Taken {
    /// A part of all names, so that no other process has them.
    maker: Owner,
    /// The queues in which names are taken, with the number of each name.
    numbers: BTreeSet<(Arc<str>, u32)>,
}

/// The name of a key that one request has, and what the request writes into it.
pub(super) struct Name {
    pub(super) key: String,
    pub(super) value: String,
    taken: Option<(Places, Owner, (Arc<str>, u32))>,
}

impl Places {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Taken::new())))
    }

    /// A name in the queue whose keys begin with `queue`, for a request that writes `value`. No
    /// other request writes the same.
    pub(super) fn take(&self, queue: &str, value: String) -> Arc<Name> {
        let mut taken = self.0.lock();
        let mut place = (Arc::from(queue), 0);
        let mut others = taken.numbers.range(place.clone()..);
        while others.next() == Some(&place) {
            place.1 += 1;
        }
        taken.numbers.insert(place.clone());
        let maker = taken.maker;
        Arc::new(Name {
            key: format!("{queue}{maker}.{:x}", place.1),
            value,
            taken: Some((self.clone(), maker, place)),
        })
    }

    /// The name is also another's: a copy of this process (a machine that was restored from a
    /// snapshot) has the same names, and a lease that nobody could confirm may have left keys. From
    /// here on, all names are new ones.
    pub(super) fn start_new_names(&self, name: &Name) {
        let mut taken = self.0.lock();
        // Several requests may find this out at the same time.
        if matches!(name.taken, Some((_, maker, _)) if maker == taken.maker) {
            *taken = Taken::new();
        }
    }
}

impl Taken {
    fn new() -> Self {
        Self {
            maker: Owner::unique(),
            numbers: BTreeSet::new(),
        }
    }
}

impl Name {
    /// A name that comes from elsewhere, and that nobody else ever has.
    pub(super) fn given(key: String, value: String) -> Arc<Self> {
        Arc::new(Self {
            key,
            value,
            taken: None,
        })
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Some((places, maker, place)) = &self.taken {
            let mut taken = places.0.lock();
            if taken.maker == *maker {
                taken.numbers.remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Places, queue: &str) -> Arc<Name> {
        places.take(queue, "request".to_owned())
    }

    fn taken(places: &Places) -> usize {
        places.0.lock().numbers.len()
    }

    #[test]
    fn a_name_is_used_again_when_nobody_has_it() {
        let places = Places::new();
        let (first, second) = (take(&places, "a/"), take(&places, "a/"));
        assert_ne!(first.key, second.key);
        let (key, kept) = (first.key.clone(), Arc::clone(&first));
        drop(first);
        let third = take(&places, "a/");
        assert!(third.key != key && third.key != second.key);
        drop(kept);
        assert_eq!(take(&places, "a/").key, key);
        assert_ne!(take(&places, "b/").key, key);
    }

    #[test]
    fn nothing_is_kept_of_a_queue_without_requests() {
        let places = Places::new();
        let names: Vec<_> = (0..100).map(|_| take(&places, "a/")).collect();
        assert_eq!(taken(&places), 100);
        drop(names);
        assert_eq!(taken(&places), 0);
        let other = take(&places, "b/");
        places.start_new_names(&other);
        let again = take(&places, "b/");
        drop(other);
        assert_eq!(taken(&places), 1, "that of the new names");
        drop(again);
        assert_eq!(taken(&places), 0);
    }

    #[test]
    fn a_name_that_is_anothers_is_left_once() {
        let places = Places::new();
        let (one, other) = (take(&places, "a/"), take(&places, "a/"));
        places.start_new_names(&one);
        let new = take(&places, "a/").key.clone();
        assert!(new != one.key && new != other.key);
        places.start_new_names(&other);
        drop(one);
        drop(other);
        assert_eq!(take(&places, "a/").key, new);
    }
}
