//! Warns when callers name different numbers of permits for one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::key::Shown;
use crate::sync::Mutex;
use crate::tables::{HashMap, HashSet};

/// When more keys than this have been named, all are forgotten and the table starts again.
const MOST_KEYS: usize = 1000;

/// No more keys than this are warned about. If the numbers differ for all tenants of a service,
/// this many warnings are enough.
const MOST_WARNINGS: usize = 1000;

/// The numbers of permits that the callers of a manager name, and those of other callers as the
/// store shows them. Each caller goes by its own number, so what was meant as one limit becomes
/// two. That is warned about once for a key.
#[derive(Debug)]
pub(crate) struct PermitNumbers {
    namespace: Arc<str>,
    seen: Mutex<Seen>,
    /// No more warnings follow.
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Seen {
    /// The numbers named by callers of this manager; keys without its namespace.
    named: HashMap<Arc<str>, u32>,
    warned: HashSet<Arc<str>>,
}

/// Which warning is due.
#[derive(Debug, PartialEq, Eq)]
enum Differs {
    Warn,
    /// The last one: the warning says that no more follow.
    WarnLast,
}

impl PermitNumbers {
    pub(crate) fn new(namespace: Arc<str>) -> Self {
        Self {
            namespace,
            seen: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Notes that a caller of this manager asks for one of this many permits.
    pub(crate) fn note(&self, name: &Arc<str>, most: u32) {
        if let Some((before, differs)) = self.named(name, most) {
            warn(name, most, before, "another of this process", &differs);
        }
    }

    /// A request for `key` (with its namespace) goes by the number `most`, and the store has
    /// shown a caller that goes by `other`.
    pub(super) fn saw(&self, key: &str, most: u32, other: u32) {
        if self.ended.load(Relaxed) {
            return;
        }
        let prefix = key.strip_prefix(&*self.namespace);
        let name = prefix.and_then(|name| name.strip_prefix(':'));
        let name = name.filter(|_| !self.namespace.is_empty()).unwrap_or(key);
        if let Some(differs) = self.differs(name) {
            warn(
                name,
                most,
                other,
                "another, perhaps of another process,",
                &differs,
            );
        }
    }

    fn named(&self, name: &Arc<str>, most: u32) -> Option<(u32, Differs)> {
        if self.ended.load(Relaxed) {
            return None;
        }
        let before = {
            let named = &mut self.seen.lock().named;
            if named.len() >= MOST_KEYS && !named.contains_key(name) {
                named.clear();
            }
            named.insert(Arc::clone(name), most)?
        };
        if before == most {
            return None;
        }
        Some((before, self.differs(name)?))
    }

    /// `None`: no warning is due, since this key has had one, or all keys together enough.
    fn differs(&self, name: &str) -> Option<Differs> {
        let warned = &mut self.seen.lock().warned;
        // A waiter sees the same number again and again.
        if warned.len() >= MOST_WARNINGS || warned.contains(name) {
            return None;
        }
        warned.insert(Arc::from(name));
        let is_last = warned.len() == MOST_WARNINGS;
        self.ended.store(is_last, Relaxed);
        Some(if is_last {
            Differs::WarnLast
        } else {
            Differs::Warn
        })
    }
}

fn warn(name: &str, most: u32, other: u32, whose: &str, differs: &Differs) {
    let more = match differs {
        Differs::Warn => "",
        Differs::WarnLast => "; so are the numbers of many keys by now, and no more are told",
    };
    tracing::warn!(
        target: "dlock::permits",
        "lock `{}`: one caller asks for one of {most} permits, and {whose} for one of {other}; each \
         goes by its own number. If that is not meant, name the number in one place. This is told \
         once for this lock{more}",
        Shown(name)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Arc<str> {
        Arc::from(format!("api:{number}"))
    }

    fn numbers() -> PermitNumbers {
        PermitNumbers::new(Arc::from("shop"))
    }

    #[test]
    fn each_key_is_told_once() {
        let numbers = numbers();
        let named = |number, most| numbers.named(&key(number), most);
        assert_eq!(named(1, 5), None);
        assert_eq!(named(2, 9), None);
        assert_eq!(named(1, 5), None);
        for other in 3..3 * MOST_KEYS / 2 {
            assert_eq!(named(other, 1), None);
        }
        assert_eq!(named(1, 5), None, "forgotten by now");
        assert_eq!(named(1, 6), Some((5, Differs::Warn)));
        assert_eq!(named(1, 5), None, "told once");
        assert_eq!(named(2, 9), None, "forgotten by now");
        assert_eq!(named(2, 8), Some((9, Differs::Warn)), "of another key");
        assert!(numbers.seen.lock().named.len() <= MOST_KEYS);
    }

    #[test]
    fn what_the_store_has_shown_is_told_once_too() {
        let numbers = numbers();
        numbers.saw("shop:api:1", 5, 10);
        assert!(numbers.seen.lock().warned.contains("api:1"));
        assert_eq!(numbers.named(&key(1), 5), None);
        assert_eq!(numbers.named(&key(1), 6), None, "told already");
        let without = PermitNumbers::new(Arc::from(""));
        without.saw(":api", 5, 10);
        assert!(without.seen.lock().warned.contains(":api"));
    }

    #[test]
    fn an_end_is_put_to_it() {
        let numbers = numbers();
        let told = (0..2 * MOST_WARNINGS).filter_map(|number| numbers.differs(&key(number)));
        let told: Vec<_> = told.collect();
        assert_eq!(told.len(), MOST_WARNINGS);
        assert_eq!(told.last(), Some(&Differs::WarnLast));
        assert!(!told[1..MOST_WARNINGS - 1].contains(&Differs::WarnLast));
        assert_eq!(
            (numbers.named(&key(0), 1), numbers.named(&key(0), 2)),
            (None, None)
        );
    }
}
