//! What proves the leases of this process. A store whose record is `()` has no
//! table: nothing of this is then compiled.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::backend::{Owner, Request};

pub(super) struct LeaseTable<R>(Mutex<Entries<R>>);

struct Entries<R> {
    by_owner: HashMap<Owner, Entry<R>>,
    /// So many were left at the last look for those that are long past.
    kept: usize,
}

struct Entry<R> {
    record: R,
    /// A release was sent, and not answered.
    released: bool,
    /// Nobody can believe in the lease any more.
    past: Option<Instant>,
}

/// So few need no looking through.
const FEW: usize = 64;

/// So many ttls after its last extension, a lease that nobody gives back is
/// forgotten.
const FORGOTTEN_AFTER: u32 = 4;

impl<R: Clone> LeaseTable<R> {
    /// Whether there is anything to keep.
    pub(super) const KEEPS: bool = size_of::<R>() > 0;

    pub(super) fn new() -> Self {
        Self(Mutex::new(Entries {
            by_owner: HashMap::new(),
            kept: 0,
        }))
    }

    pub(super) fn insert(&self, request: &Request, record: R, now: Instant) {
        let mut entries = self.entries();
        entries.sweep(now);
        let entry = Entry {
            record,
            released: false,
            past: past(request, now),
        };
        entries.by_owner.insert(request.owner, entry);
    }

    pub(super) fn record(&self, owner: Owner) -> Option<R> {
        Some(self.entries().by_owner.get(&owner)?.record.clone())
    }

    /// It was extended, or at least asked for.
    pub(super) fn update(&self, request: &Request, record: R, now: Instant) {
        if let Some(entry) = self.entries().by_owner.get_mut(&request.owner) {
            entry.record = record;
            entry.past = past(request, now);
        }
    }

    /// Its record, and whether a release was sent before. The lease is nobody's
    /// from here on, but its entry stays until the store has answered.
    pub(super) fn give_back(&self, owner: Owner) -> Option<(R, bool)> {
        let mut entries = self.entries();
        let entry = entries.by_owner.get_mut(&owner)?;
        let before = std::mem::replace(&mut entry.released, true);
        Some((entry.record.clone(), before))
    }

    /// Whether it was there, and held.
    pub(super) fn remove(&self, owner: Owner) -> bool {
        let entry = self.entries().by_owner.remove(&owner);
        entry.is_some_and(|entry| !entry.released)
    }

    /// A lease or session has ended, and all that was held by it.
    pub(super) fn ended(&self, is_of_it: impl Fn(&R) -> bool) -> Vec<Owner> {
        let mut lost = Vec::new();
        self.entries().by_owner.retain(|&owner, entry| {
            let stays = !is_of_it(&entry.record);
            if !stays && !entry.released {
                lost.push(owner);
            }
            stays
        });
        lost
    }

    fn entries(&self) -> MutexGuard<'_, Entries<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> Entries<R> {
    /// Takes out what is long past when there is twice as much as was left the
    /// last time.
    fn sweep(&mut self, now: Instant) {
        if self.by_owner.len() >= 2 * self.kept.max(FEW) {
            self.by_owner
                .retain(|_, entry| entry.past.is_none_or(|past| past > now));
            self.kept = self.by_owner.len();
        }
    }
}

/// `None`: not in any program's life.
fn past(request: &Request, now: Instant) -> Option<Instant> {
    now.checked_add(request.ttl.checked_mul(FORGOTTEN_AFTER)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Mode;

    #[test]
    fn what_is_never_given_back_is_forgotten() {
        let ttl = Duration::from_secs(10);
        let table = LeaseTable::new();
        let start = Instant::now();
        for number in 0..10 * FEW as u32 {
            let now = start + number * ttl;
            let request = Request::new("key", Mode::Write, ttl);
            table.insert(&request, number, now);
            assert_eq!(table.record(request.owner), Some(number));
        }
        assert!(table.entries().by_owner.len() <= 2 * FEW + 1);
    }

    #[test]
    fn what_is_held_stays_however_many_there_are() {
        let ttl = Duration::from_secs(10);
        let table = LeaseTable::new();
        let start = Instant::now();
        let held = Request::new("held", Mode::Write, ttl);
        table.insert(&held, 0, start);
        for number in 1..10 * FEW as u32 {
            let now = start + number * ttl;
            table.update(&held, number, now);
            table.insert(&Request::new("key", Mode::Write, ttl), 0, now);
        }
        assert!(table.record(held.owner).is_some());
    }
}
