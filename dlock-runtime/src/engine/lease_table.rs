//! What proves the leases of this process. Where that is `()`, there is nothing to
//! keep: no entry is made, and every lease is taken for one that is held.
//!
//! Each lease is in a schedule too. Where it ends by itself in the store
//! ([`EXPIRES`](crate::store::Store::EXPIRES)), it is forgotten by that if nobody
//! gives it back; else it is ended from here.

use std::any::Any;
use std::collections::BTreeSet;
use std::time::Instant;

use tokio::sync::Notify;

use crate::backend::{Owner, Request};
use crate::sync::Mutex;
use crate::tables::HashMap;

pub(super) struct LeaseTable<R> {
    entries: Mutex<Entries<R>>,
    /// Something is due before the time that was told last.
    sooner: Notify,
}

struct Entries<R> {
    by_owner: HashMap<Owner, Entry<R>>,
    schedule: BTreeSet<(Instant, Owner)>,
    /// When the next look at the schedule is. What is due later need not wake
    /// anybody, so a short hold costs no more than its entry.
    armed: Option<Instant>,
}

struct Entry<R> {
    record: R,
    request: Request,
    /// A release was sent, and not answered.
    released: bool,
    /// When it is taken out of the schedule, if it is still there.
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

    /// Whether there is anything to keep.
    pub(super) fn keeps() -> bool {
        Self::nothing().is_none()
    }

    /// `()`, if that is the record. Known when compiling.
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

    /// It was extended. `false`: it is not held any more.
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

    /// Its record, and whether a release was sent before. The lease is nobody's
    /// from here on, but its entry stays until the store has answered, or `by` if that
    /// is given: then it is ended as this request says.
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

    /// Whether it was there, and held.
    pub(super) fn remove(&self, owner: Owner) -> bool {
        !Self::keeps() || self.entries.lock().remove(owner)
    }

    /// A lease or session has ended, and all that was held by it: whose, and whether
    /// they held it still.
    pub(super) fn ended(&self, is_of_it: impl Fn(&R) -> bool) -> Vec<(Owner, bool)> {
        let mut entries = self.entries.lock();
        let of_it = entries.by_owner.iter();
        let of_it = of_it.filter(|(_, entry)| is_of_it(&entry.record));
        let gone: Vec<_> = of_it.map(|(&owner, _)| owner).collect();
        let gone = gone.into_iter();
        gone.map(|owner| (owner, entries.remove(owner))).collect()
    }

    /// Forgets all. Whether a lease is held.
    pub(super) fn clear(&self) -> bool {
        let mut entries = self.entries.lock();
        entries.schedule.clear();
        let forgotten = std::mem::take(&mut entries.by_owner);
        drop(entries);
        forgotten.values().any(|entry| !entry.released)
    }

    /// Forgets what was due by then.
    pub(super) fn forget_due(&self, now: Instant) {
        let mut entries = self.entries.lock();
        while let Some(owner) = entries.next_due(now) {
            entries.by_owner.remove(&owner);
        }
    }

    /// The leases that this process ends now, and when there will be more. Their
    /// entries stay until the store has answered.
    pub(super) fn take_due(&self, now: Instant) -> (Vec<(Request, R)>, Option<Instant>) {
        let mut entries = self.entries.lock();
        let mut over = Vec::new();
        while let Some(owner) = entries.next_due(now) {
            if let Some(entry) = entries.by_owner.get_mut(&owner) {
                entry.released = true;
                over.push((entry.request.clone(), entry.record.clone()));
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

    /// Whether it was there, and held.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Mode;

    /// But not what is held, however many there are.
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
