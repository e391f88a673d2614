//! The records that prove the leases of this process. If the record type is `()`, nothing is kept:
//! no entry is made, and every lease is taken for held.
//!
//! Each lease is also in a schedule. A lease that ends by itself in the store
//! ([`EXPIRES`](crate::store::Store::EXPIRES)) is forgotten by that schedule if nobody gives it
//! back. Other leases are ended by it.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Notify;

use crate::backend::{Owner, Request};
use crate::sync::Mutex;
use crate::tables::HashMap;

pub(super) struct LeaseTable<R> {
    entries: Mutex<Entries<R>>,
    /// Notified when something is due before `armed`.
    sooner: Notify,
}

struct Entries<R> {
    by_owner: HashMap<Owner, Entry<R>>,
    schedule: BTreeSet<(Instant, Owner)>,
    /// When the schedule will be looked at next. What is due later need not wake the task, so a
    /// short hold costs only its entry.
    armed: Option<Instant>,
}

struct Entry<R> {
    record: R,
    request: Request,
    /// A release was sent and not answered.
    released: bool,
    /// When it leaves the schedule, if it is still there.
    due: Option<Instant>,
}

impl<R: Clone + 'static> LeaseTable<R> {
    pub(super) fn new() -> Self {
        Self {
            entries: Mutex::new(Entries {
                by_owner: HashMap::default(),
                schedule: BTreeSet::new(),
                armed: None,
            }),
            sooner: Notify::new(),
        }
    }

    /// Whether there are records to keep.
    pub(super) fn keeps() -> bool {
        Self::nothing().is_none()
    }

    /// `()`, if that is the record type. Known at compile time.
    fn nothing() -> Option<R> {
        (&() as &dyn Any).downcast_ref().cloned()
    }

    pub(super) fn insert(&self, request: &Request, record: R, due: Instant) {
        self.change(|entries| {
            let entry = Entry {
                record,
                request: request.clone(),
                released: false,
                due: None,
            };
            entries.remove(request.owner);
            entries.by_owner.insert(request.owner, entry);
            entries.put_off(request.owner, due);
        });
    }

    pub(super) fn record(&self, owner: Owner) -> Option<R> {
        if let Some(nothing) = Self::nothing() {
            return Some(nothing);
        }
        let entries = self.entries.lock();
        let entry = entries.by_owner.get(&owner);
        Some(entry.filter(|entry| !entry.released)?.record.clone())
    }

    pub(super) fn update(&self, owner: Owner, record: R) {
        if let Some(entry) = self.entries.lock().by_owner.get_mut(&owner) {
            entry.record = record;
        }
    }

    /// Records an extension. Returns `false` if the lease is not held any more.
    pub(super) fn extend(&self, owner: Owner, due: Instant) -> bool {
        self.change(|entries| {
            let entry = entries.by_owner.get(&owner);
            let held = entry.is_some_and(|entry| !entry.released);
            if held {
                entries.put_off(owner, due);
            }
            held
        })
    }

    /// Returns the record, and whether a release was sent before. From here on nobody holds the
    /// lease, but its entry stays until the store has answered. If `by` is given, the schedule ends
    /// the lease at that time, as `request` says.
    pub(super) fn give_back(&self, request: &Request, by: Option<Instant>) -> Option<(R, bool)> {
        if let Some(nothing) = Self::nothing() {
            return Some((nothing, false));
        }
        self.change(|entries| {
            let owner = request.owner;
            let entry = entries.by_owner.get_mut(&owner)?;
            let before = std::mem::replace(&mut entry.released, true);
            entry.request = request.clone();
            let (record, is_due) = (entry.record.clone(), entry.due.is_some());
            if let Some(by) = by.filter(|_| is_due) {
                entries.put_off(owner, by);
            }
            Some((record, before))
        })
    }

    /// Returns whether the lease was there and held.
    pub(super) fn remove(&self, owner: Owner) -> bool {
        !Self::keeps() || self.entries.lock().remove(owner)
    }

    /// Removes all leases of a lease or session that has ended. Returns their owners, and whether
    /// each was still held.
    pub(super) fn ended(&self, is_of_it: impl Fn(&R) -> bool) -> Vec<(Owner, bool)> {
        let mut entries = self.entries.lock();
        let of_it = entries.by_owner.iter();
        let of_it = of_it.filter(|(_, entry)| is_of_it(&entry.record));
        let gone: Vec<_> = of_it.map(|(&owner, _)| owner).collect();
        let gone = gone.into_iter();
        gone.map(|owner| (owner, entries.remove(owner))).collect()
    }

    /// Forgets all leases. Returns whether any was held.
    pub(super) fn clear(&self) -> bool {
        let mut entries = self.entries.lock();
        entries.schedule.clear();
        let forgotten = std::mem::take(&mut entries.by_owner);
        drop(entries);
        forgotten.values().any(|entry| !entry.released)
    }

    /// Forgets what was due by `now`.
    pub(super) fn forget_due(&self, now: Instant) {
        let mut entries = self.entries.lock();
        while let Some(owner) = entries.next_due(now) {
            entries.by_owner.remove(&owner);
        }
    }

    /// The leases that this process must end now, and when the next are due. Their entries stay
    /// until the store has answered.
    pub(super) fn take_due(&self, now: Instant) -> (Vec<(Request, R)>, Option<Instant>) {
        let mut entries = self.entries.lock();
        let mut over = Vec::new();
        while let Some(owner) = entries.next_due(now) {
            if let Some(entry) = entries.by_owner.get_mut(&owner) {
                entry.released = true;
                over.push((entry.request.clone(), entry.record.clone()));
            }
        }
        // A lease that was given back before this look does not disarm the timer. Otherwise the
        // next of many short holds would wake the task again, and so would each one after it.
        let next = entries.schedule.first().map(|&(due, _)| due);
        entries.armed = next.or(entries.armed.filter(|&armed| armed > now));
        (over, entries.armed)
    }

    /// Waits until something is due before the time last returned.
    pub(super) async fn sooner(&self) {
        self.sooner.notified().await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut Entries<R>) -> T) -> T {
        let mut entries = self.entries.lock();
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
}

impl<R> Entries<R> {
    fn put_off(&mut self, owner: Owner, due: Instant) {
        if let Some(entry) = self.by_owner.get_mut(&owner) {
            if let Some(before) = entry.due.replace(due) {
                self.schedule.remove(&(before, owner));
            }
            self.schedule.insert((due, owner));
        }
    }

    fn next_due(&mut self, now: Instant) -> Option<Owner> {
        let &(due, owner) = self.schedule.first()?;
        if due > now {
            return None;
        }
        self.schedule.pop_first();
        if let Some(entry) = self.by_owner.get_mut(&owner) {
            entry.due = None;
        }
        Some(owner)
    }

    /// Returns whether the lease was there and held.
    fn remove(&mut self, owner: Owner) -> bool {
        let Some(entry) = self.by_owner.remove(&owner) else {
            return false;
        };
        if let Some(due) = entry.due {
            self.schedule.remove(&(due, owner));
        }
        !entry.released
    }
}

/// A table by owner that is usually empty. Removing from an empty one takes no mutex.
pub(super) struct MostlyEmptyTable<T> {
    any: AtomicBool,
    table: Mutex<HashMap<Owner, T>>,
}

impl<T> Default for MostlyEmptyTable<T> {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            table: Mutex::default(),
        }
    }
}

impl<T> MostlyEmptyTable<T> {
    pub(super) fn insert(&self, owner: Owner, value: T) {
        let mut table = self.table.lock();
        table.insert(owner, value);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn remove(&self, owner: Owner) -> Option<T> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut table = self.table.lock();
        let value = table.remove(&owner);
        self.any.store(!table.is_empty(), Ordering::Release);
        value
    }

    pub(super) fn get(&self, owner: Owner) -> Option<T>
    where
        T: Clone,
    {
        self.table.lock().get(&owner).cloned()
    }

    pub(super) fn retain(&self, is_kept: impl Fn(&T) -> bool) {
        self.table.lock().retain(|_, value| is_kept(value));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Mode;

    /// While leases that are still held stay, however many others there are.
    #[test]
    fn what_is_never_given_back_is_forgotten() {
        let ttl = Duration::from_secs(10);
        let table = LeaseTable::new();
        let start = Instant::now();
        let held = Request::new("held", Mode::Write, ttl);
        table.insert(&held, 0, start + 4 * ttl);
        for number in 1..640 {
            let now = start + number * ttl;
            table.forget_due(now);
            assert!(table.extend(held.owner, now + 4 * ttl));
            let request = Request::new("key", Mode::Write, ttl);
            table.insert(&request, number, now + 4 * ttl);
            assert_eq!(table.record(request.owner), Some(number));
        }
        assert_eq!(table.record(held.owner), Some(0));
        assert_eq!(table.entries.lock().by_owner.len(), 1 + 4);
    }
}
