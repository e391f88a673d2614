//! What proves the leases of this process. A store whose record is `()` has no
//! table: nothing of this is then compiled.
//!
//! Where a lease does not end by itself in the store
//! ([`EXPIRES`](crate::store::Store::EXPIRES)), it ends from here: the table has a
//! schedule then.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::backend::{Owner, Request};

pub(super) struct LeaseTable<R> {
    entries: Mutex<Entries<R>>,
    /// Something is due before the time that was told last.
    sooner: Notify,
}

struct Entries<R> {
    by_owner: HashMap<Owner, Entry<R>>,
    /// So many were left at the last look for those that are long past.
    kept: usize,
    schedule: BTreeSet<(Instant, Owner)>,
    /// When the next look at the schedule is. What is due later need not wake
    /// anybody, so a short hold costs no more than its entry.
    armed: Option<Instant>,
}

struct Entry<R> {
    record: R,
    /// A release was sent, and not answered.
    released: bool,
    /// Nobody can believe in the lease any more.
    past: Option<Instant>,
    /// Where this process ends it.
    end: Option<End>,
}

struct End {
    due: Instant,
    request: Request,
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
        Self {
            entries: Mutex::new(Entries {
                by_owner: HashMap::new(),
                kept: 0,
                schedule: BTreeSet::new(),
                armed: None,
            }),
            sooner: Notify::new(),
        }
    }

    /// A lease that counts from then, and ends by itself.
    pub(super) fn insert(&self, request: &Request, record: R, now: Instant) {
        let mut entries = self.entries();
        entries.sweep(now);
        let entry = Entry {
            record,
            released: false,
            past: past(request, now),
            end: None,
        };
        entries.by_owner.insert(request.owner, entry);
    }

    /// The same, but for one that this process ends.
    pub(super) fn insert_until(&self, due: Instant, request: &Request, record: R) {
        self.change(|entries| {
            let entry = Entry {
                record,
                released: false,
                past: None,
                end: Some(End {
                    due,
                    request: request.clone(),
                }),
            };
            entries.by_owner.insert(request.owner, entry);
            entries.schedule.insert((due, request.owner));
        });
    }

    pub(super) fn record(&self, owner: Owner) -> Option<R> {
        let entries = self.entries();
        let entry = entries.by_owner.get(&owner);
        Some(entry.filter(|entry| !entry.released)?.record.clone())
    }

    /// It was extended, or at least asked for.
    pub(super) fn update(&self, request: &Request, record: R, now: Instant) {
        if let Some(entry) = self.entries().by_owner.get_mut(&request.owner) {
            entry.record = record;
            if entry.end.is_none() {
                entry.past = past(request, now);
            }
        }
    }

    /// It was extended, and this process ends it then. `false`: it has ended.
    pub(super) fn extend(&self, owner: Owner, due: Instant) -> bool {
        self.change(|entries| {
            let entry = entries.by_owner.get(&owner);
            let held = entry.is_some_and(|entry| !entry.released);
            if held {
                entries.reschedule(owner, due);
            }
            held
        })
    }

    /// Its record, and whether a release was sent before. The lease is nobody's
    /// from here on, but its entry stays until the store has answered. Where this
    /// process ends it, it does so if that takes longer than until `by`.
    pub(super) fn give_back(&self, owner: Owner, by: Instant) -> Option<(R, bool)> {
        self.change(|entries| {
            let entry = entries.by_owner.get_mut(&owner)?;
            let before = std::mem::replace(&mut entry.released, true);
            let record = entry.record.clone();
            entries.reschedule(owner, by);
            Some((record, before))
        })
    }

    /// Whether it was there, and held.
    pub(super) fn remove(&self, owner: Owner) -> bool {
        self.entries().remove(owner)
    }

    /// A lease or session has ended, and all that was held by it.
    pub(super) fn ended(&self, is_of_it: impl Fn(&R) -> bool) -> Vec<Owner> {
        let mut entries = self.entries();
        let of_it = entries.by_owner.iter();
        let of_it = of_it.filter(|(_, entry)| is_of_it(&entry.record));
        let gone: Vec<_> = of_it.map(|(&owner, _)| owner).collect();
        let held = gone.into_iter().filter(|&owner| entries.remove(owner));
        held.collect()
    }

    /// Forgets all. Whether a lease is held.
    pub(super) fn clear(&self) -> bool {
        let mut entries = self.entries();
        entries.schedule.clear();
        let forgotten = std::mem::take(&mut entries.by_owner);
        drop(entries);
        forgotten.values().any(|entry| !entry.released)
    }

    /// The leases that this process ends now, and when there will be more. Their
    /// entries stay until the store has answered.
    pub(super) fn take_due(&self, now: Instant) -> (Vec<(Request, R)>, Option<Instant>) {
        let mut entries = self.entries();
        let mut over = Vec::new();
        while let Some(&(due, owner)) = entries.schedule.first() {
            if due > now {
                break;
            }
            entries.schedule.pop_first();
            let Some(entry) = entries.by_owner.get_mut(&owner) else {
                continue;
            };
            entry.released = true;
            // Whoever ends it does not give up.
            if let Some(end) = entry.end.take() {
                over.push((end.request, entry.record.clone()));
            }
        }
        // A lease that was given back before this looked at it does not disarm it:
        // the next would wake it again, and so each of many short holds.
        let next = entries.schedule.first().map(|&(due, _)| due);
        entries.armed = next.or(entries.armed.filter(|&armed| armed > now));
        (over, entries.armed)
    }

    /// Waits until something is due sooner than was told.
    pub(super) async fn sooner(&self) {
        self.sooner.notified().await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut Entries<R>) -> T) -> T {
        let mut entries = self.entries();
        let answer = change(&mut entries);
        let first = entries.schedule.first().map(|&(due, _)| due);
        let sooner = first.is_some_and(|first| entries.armed.is_none_or(|armed| first < armed));
        if sooner {
            entries.armed = first;
        }
        drop(entries);
        if sooner {
            self.sooner.notify_one();
        }
        answer
    }

    fn entries(&self) -> MutexGuard<'_, Entries<R>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn reschedule(&mut self, owner: Owner, due: Instant) {
        let entry = self.by_owner.get_mut(&owner);
        if let Some(end) = entry.and_then(|entry| entry.end.as_mut()) {
            self.schedule.remove(&(end.due, owner));
            self.schedule.insert((due, owner));
            end.due = due;
        }
    }

    /// Whether it was there, and held.
    fn remove(&mut self, owner: Owner) -> bool {
        let Some(entry) = self.by_owner.remove(&owner) else {
            return false;
        };
        if let Some(end) = entry.end {
            self.schedule.remove(&(end.due, owner));
        }
        !entry.released
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
