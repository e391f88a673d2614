//! What the items of this process's leases were when they were last seen.
//!
//! With the number of an item, a lease is extended or given back in one round
//! trip; without, it is read first. So what is missing here costs time and
//! nothing else.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::connection::Version;
use super::expiry::Expiry;
use crate::backend::Owner;
use crate::backend::clock::Deadline;

#[derive(Default)]
pub(super) struct Known {
    leases: Mutex<Leases>,
}

#[derive(Default)]
struct Leases {
    entries: HashMap<Owner, Entry>,
    /// So many were left at the last look for those that have ended.
    kept: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    version: Version,
    /// The item is gone then.
    ends: Deadline,
}

/// So few need no looking through.
const FEW: usize = 64;

impl Known {
    /// A lease was granted or extended.
    pub(super) fn seen(&self, owner: Owner, version: Version, sent_at: Instant, expiry: Expiry) {
        let ends = Deadline::from(sent_at, expiry.at_most());
        let mut leases = self.leases();
        leases.sweep();
        leases.entries.insert(owner, Entry { version, ends });
    }

    pub(super) fn recall(&self, owner: Owner) -> Option<Version> {
        Some(self.leases().entries.get(&owner)?.version)
    }

    /// A lease has ended.
    pub(super) fn forget(&self, owner: Owner) {
        self.leases().entries.remove(&owner);
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leases {
    /// Takes out what has ended, and was never given back, when there is twice
    /// as much as was left the last time.
    fn sweep(&mut self) {
        if self.entries.len() >= 2 * self.kept.max(FEW) {
            self.entries.retain(|_, entry| !entry.ends.has_passed());
            self.kept = self.entries.len();
        }
    }
}
