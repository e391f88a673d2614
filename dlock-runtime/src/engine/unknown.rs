//! Holders of whom an earlier command may still be under way.
//!
//! A request that got its lock after an answer was lost holds it like any other.
//! But the lost command may be run yet; after the release it would lock the key
//! again, for nobody. So such a release is followed by a
//! [cleanup](super::cleanup).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::backend::Owner;

#[derive(Default)]
pub(super) struct UnknownOutcomes {
    /// Spares every release a lock in the usual case.
    any: AtomicBool,
    /// When the command was sent.
    table: Mutex<HashMap<Owner, Instant>>,
}

impl UnknownOutcomes {
    /// A command of this request, sent at this time, was never answered.
    /// `is_past` says of others, whose lease was lost and who are never taken
    /// out, that they are of no concern any more.
    pub(super) fn add(&self, owner: Owner, sent_at: Instant, is_past: impl Fn(Instant) -> bool) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|_, sent_at| !is_past(*sent_at));
        table.insert(owner, sent_at);
        self.any.store(true, Ordering::Release);
    }

    /// Takes an owner out: when its unanswered command was sent.
    pub(super) fn take(&self, owner: Owner) -> Option<Instant> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let sent_at = table.remove(&owner);
        self.any.store(!table.is_empty(), Ordering::Release);
        sent_at
    }
}
