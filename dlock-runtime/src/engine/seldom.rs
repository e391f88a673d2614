//! A table by owner that is usually empty. Removing from an empty one takes no mutex.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::Owner;
use crate::sync::Mutex;
use crate::tables::HashMap;

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
