//! Callers that name different numbers of permits for one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::key::Shown;
use crate::sync::Mutex;
use crate::tables::HashMap;

/// Beyond so many keys, it begins to look anew.
const MOST_KEYS: usize = 1000;

/// The numbers that callers of this process have named. Each goes by its own, and the
/// first time that two differ is told: what was meant as one limit is two.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    told: AtomicBool,
    named: Mutex<HashMap<Arc<str>, u32>>,
}

impl Numbers {
    /// A caller goes by this number. Says by which another one went.
    fn differs(&self, name: &Arc<str>, most: u32) -> Option<u32> {
        if self.told.load(Relaxed) {
            return None;
        }
        let mut named = self.named.lock();
        if named.len() >= MOST_KEYS {
            named.clear();
        }
        let before = named.insert(Arc::clone(name), most)?;
        (before != most && !self.told.swap(true, Relaxed)).then_some(before)
    }

    /// A caller goes by this number.
    pub(super) fn note(&self, name: &Arc<str>, most: u32) {
        if let Some(before) = self.differs(name, most) {
            tracing::warn!(
                target: "dlock::permits",
                "lock `{}`: one caller asks for one of {most} permits, and another for one of \
                 {before}; each goes by its own number. If that is not meant, name the number in \
                 one place. Told once",
                Shown(name)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_that_differ_are_told() {
        let numbers = Numbers::default();
        let key = |number: usize| Arc::from(format!("api:{number}"));
        assert_eq!(numbers.differs(&key(1), 5), None);
        assert_eq!(numbers.differs(&key(2), 9), None);
        assert_eq!(numbers.differs(&key(1), 5), None);
        for other in 3..3 * MOST_KEYS / 2 {
            assert_eq!(numbers.differs(&key(other), 1), None);
        }
        assert_eq!(numbers.differs(&key(1), 5), None, "forgotten by now");
        assert_eq!(numbers.differs(&key(1), 6), Some(5));
        assert_eq!(numbers.differs(&key(1), 5), None, "told once");
        assert!(numbers.named.lock().len() <= MOST_KEYS);
    }
}
