//! What the sweep looks after and no queue knows: requests of one task only, and
//! the locks that a call has while it waits for the rest of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::asking::Asking;
use super::attention::Attention;
use super::sweep::{Sweep, Tick};
use super::turn::Turn;

/// What the sweep looks after and no queue knows.
#[derive(Debug, Default)]
pub(super) struct Others {
    next: u64,
    known: HashMap<u64, Other>,
}

#[derive(Clone, Debug)]
pub(super) enum Other {
    Asking(Arc<Asking>),
    Collected(Arc<Collected>),
}

impl Others {
    pub(super) fn enter(&mut self, other: Other) -> u64 {
        self.next += 1;
        self.known.insert(self.next, other);
        self.next
    }

    pub(super) fn leave(&mut self, number: u64) -> Option<Other> {
        self.known.remove(&number)
    }

    pub(super) fn all(&self) -> Vec<Other> {
        self.known.values().cloned().collect()
    }
}

/// Turns that nobody has begun. They are renewed while the call waits, and so
/// the sweep wakes it now and then to see whether it still comes.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) attention: Attention,
    /// Taken out by the call when it has all, or by the sweep.
    turns: Mutex<Option<Vec<Turn>>>,
}

impl Collected {
    pub(super) fn new(sweep: &Arc<Sweep>) -> Arc<Self> {
        Arc::new(Self {
            attention: Attention::new(sweep),
            turns: Mutex::new(Some(Vec::new())),
        })
    }

    /// Takes them from a call that has not come for too long: to be dropped.
    pub(super) fn look(&self, tick: Tick) -> Option<Vec<Turn>> {
        match self.attention.neglects_since(tick) {
            None => {
                self.attention.wake();
                None
            }
            Some(first) if tick.is_too_long_after(first) => {
                let mut turns = self.turns();
                if self.attention.attends() {
                    return None;
                }
                turns.take()
            }
            Some(_) => None,
        }
    }

    pub(super) fn turns(&self) -> MutexGuard<'_, Option<Vec<Turn>>> {
        // No code of ours panics while it holds this.
        self.turns
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
