//! A table by owner that is empty as a rule: then to look into it takes no lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::backend::Owner;

pub(super) struct Seldom<T> {
    any: AtomicBool,
    table: Mutex<HashMap<Owner, T>>,
}

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self {
            any: AtomicBool::new(false),
            table: Mutex::default(),
        }
    }
}

impl<T> Seldom<T> {
    pub(super) fn insert(&self, owner: Owner, value: T) {
        let mut table = self.table();
        table.insert(owner, value);
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn remove(&self, owner: Owner) -> Option<T> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut table = self.table();
        let value = table.remove(&owner);
        self.any.store(!table.is_empty(), Ordering::Release);
        value
    }

    pub(super) fn get(&self, owner: Owner) -> Option<T>
    where
        T: Clone,
    {
        self.table().get(&owner).cloned()
    }

    pub(super) fn retain(&self, is_kept: impl Fn(&T) -> bool) {
        self.table().retain(|_, value| is_kept(value));
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Owner, T>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command that was not answered, of an owner who holds the lock by another.
pub(super) struct Unanswered {
    pub(super) sent_at: Instant,
    /// What was sent then locks nothing any more; never, if that is not in any
    /// program's life.
    pub(super) until: Option<Instant>,
}

impl Unanswered {
    pub(super) fn may_come(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}
