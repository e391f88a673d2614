//! Holders of whom an earlier command may still be under way.
//!
//! A request that got its lock after an answer was lost holds it like any
//! other. But the lost command may be run yet; after the release it would lock
//! the key again, for nobody. So such a release is repeated for a while.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Owner;

#[derive(Default)]
pub(super) struct Suspects {
    /// Spares every release a lock in the usual case.
    any: AtomicBool,
    table: Mutex<HashMap<Owner, Suspect>>,
}

struct Suspect {
    sent_at: Instant,
    /// What was sent then locks nothing any more; never, if that is not in any
    /// program's life.
    until: Option<Instant>,
}

impl Suspect {
    fn is_past(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }
}

impl Suspects {
    /// A command of this owner, sent at this time, was never answered. `window`
    /// is for how long after that it is of concern, which is the store's to say.
    pub(super) fn add(&self, owner: Owner, sent_at: Instant, window: Duration) {
        let until = sent_at.checked_add(window);
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        // Those whose lease was lost are never taken out.
        table.retain(|_, suspect| !suspect.is_past());
        table.insert(owner, Suspect { sent_at, until });
        self.any.store(true, Ordering::Release);
    }

    /// Takes an owner out: when its unanswered command was sent, if that is
    /// still of any concern.
    pub(super) fn take(&self, owner: Owner) -> Option<Instant> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let suspect = table.remove(&owner);
        self.any.store(!table.is_empty(), Ordering::Release);
        suspect
            .filter(|suspect| !suspect.is_past())
            .map(|suspect| suspect.sent_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_of_concern_for_as_long_as_its_store_says() {
        let suspects = Suspects::default();
        let [short, long, never] = [(); 3].map(|()| Owner::unique());
        let minute = Duration::from_secs(60);
        let sent_at = Instant::now();
        suspects.add(short, sent_at, Duration::ZERO);
        suspects.add(long, sent_at, minute);
        assert_eq!(suspects.take(short), None);
        assert_eq!(suspects.take(never), None);
        assert_eq!(suspects.take(long), Some(sent_at));
        assert_eq!(suspects.take(long), None, "it is taken out");
        suspects.add(long, sent_at, Duration::MAX);
        assert_eq!(suspects.take(long), Some(sent_at));
    }
}
