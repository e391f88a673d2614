//! Callers that name different numbers of permits for one key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::mode::Mode;
use crate::key::Shown;
use crate::sync::Mutex;
use crate::tables::{HashMap, HashSet};

/// Beyond so many keys, it begins to look anew.
const MOST_KEYS: usize = 1000;

/// So many keys are told, and no more: where the numbers differ for all tenants of a
/// service, one has been told enough by then.
const MOST_TOLD: usize = 1000;

/// The numbers that callers of a manager have named, and those of others whom the store
/// has shown. Each goes by its own, and that is told once for a key: what was meant as one
/// limit is two.
#[derive(Debug)]
pub(crate) struct PermitNumbers {
    namespace: Arc<str>,
    seen: Mutex<Seen>,
    /// Nothing will be told any more.
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Seen {
    /// Of this manager, without its namespace.
    named: HashMap<Arc<str>, u32>,
    told: HashSet<Arc<str>>,
}

/// What is to be told.
#[derive(Debug, PartialEq, Eq)]
enum Differs {
    Told,
    /// And nothing after it.
    ToldLast,
}

impl PermitNumbers {
    pub(crate) fn new(namespace: Arc<str>) -> Self {
        Self {
            namespace,
            seen: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// A caller of this manager goes by the number that is in its mode, if there is one.
    pub(crate) fn note(&self, name: &Arc<str>, mode: Mode) {
        if let Mode::Permits(most) = mode
            && let Some((before, differs)) = self.named(name, most)
        {
            warn(name, most, before, "another of this process", &differs);
        }
    }

    /// A request for this key, with its namespace, goes by one number, and the store has
    /// shown somebody who goes by another one.
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

    /// `None`: it was told before.
    fn differs(&self, name: &str) -> Option<Differs> {
        let told = &mut self.seen.lock().told;
        // A waiter sees the same again and again.
        if told.len() >= MOST_TOLD || told.contains(name) {
            return None;
        }
        told.insert(Arc::from(name));
        let is_last = told.len() == MOST_TOLD;
        self.ended.store(is_last, Relaxed);
        Some(if is_last {
            Differs::ToldLast
        } else {
            Differs::Told
        })
    }
}

fn warn(name: &str, most: u32, other: u32, whose: &str, differs: &Differs) {
    let more = match differs {
        Differs::Told => "",
        Differs::ToldLast => "; so are the numbers of many keys by now, and no more are told",
    };
    tracing::warn!(
        target: "dlock::permits",
        "lock `{}`: one caller asks for one of {most} permits, and {whose} for one of {other}; each \
         goes by its own number. If that is not meant, name the number in one place. Told once for \
         this lock{more}",
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
        assert_eq!(named(1, 6), Some((5, Differs::Told)));
        assert_eq!(named(1, 5), None, "told once");
        assert_eq!(named(2, 9), None, "forgotten by now");
        assert_eq!(named(2, 8), Some((9, Differs::Told)), "of another key");
        assert!(numbers.seen.lock().named.len() <= MOST_KEYS);
    }

    #[test]
    fn what_the_store_has_shown_is_told_once_too() {
        let numbers = numbers();
        numbers.saw("shop:api:1", 5, 10);
        assert!(numbers.seen.lock().told.contains("api:1"));
        assert_eq!(numbers.named(&key(1), 5), None);
        assert_eq!(numbers.named(&key(1), 6), None, "told already");
        let without = PermitNumbers::new(Arc::from(""));
        without.saw(":api", 5, 10);
        assert!(without.seen.lock().told.contains(":api"));
    }

    #[test]
    fn an_end_is_put_to_it() {
        let numbers = numbers();
        let told = (0..2 * MOST_TOLD).filter_map(|number| numbers.differs(&key(number)));
        let told: Vec<_> = told.collect();
        assert_eq!(told.len(), MOST_TOLD);
        assert_eq!(told.last(), Some(&Differs::ToldLast));
        assert!(!told[1..MOST_TOLD - 1].contains(&Differs::ToldLast));
        assert_eq!(
            (numbers.named(&key(0), 1), numbers.named(&key(0), 2)),
            (None, None)
        );
    }
}
