//! What successive looks at the store tell of the time between them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use dlock::backend::{HolderInfo, LockInfo, Mode};

use super::figure::Figure;

/// The time over which rates and means are taken.
pub(super) const WINDOW: Duration = Duration::from_secs(60);

/// The locks that the store had at one moment.
#[derive(Debug)]
pub(super) struct Look {
    /// When the store answered, by the monotonic clock and by that of the day.
    pub(super) at: Instant,
    pub(super) clock: SystemTime,
    /// The first locks, in the order of their keys.
    pub(super) locks: Vec<LockInfo>,
    /// How many more locks there were, which were not looked at.
    pub(super) others: usize,
}

impl Look {
    /// The keys that this look tells of, held or free.
    fn covers(&self) -> Covered {
        match self.others {
            0 => Covered::All,
            _ => Covered::UpTo(self.locks.last().map(|last| last.key.clone())),
        }
    }
}

/// The keys that a look tells of. If one of them is not in the look, it was free.
#[derive(Debug)]
enum Covered {
    All,
    /// The keys up to this one; without one, no keys.
    UpTo(Option<String>),
}

impl Covered {
    fn has(&self, key: &str) -> bool {
        match self {
            Self::All => true,
            Self::UpTo(last) => last.as_deref().is_some_and(|last| key <= last),
        }
    }
}

/// The look before.
#[derive(Debug)]
struct Before {
    clock: SystemTime,
    covered: Covered,
}

/// The keys that were held within the last [`WINDOW`], and what was seen of them.
#[derive(Debug, Default)]
pub(super) struct Samples {
    began: Option<Instant>,
    last: Option<Before>,
    keys: BTreeMap<String, History>,
}

#[derive(Debug, Default)]
struct History {
    /// When it was looked at first, if the look before did not tell of it. `None`: its rate counts
    /// from the first look of all.
    began: Option<Instant>,
    /// When it was last seen held.
    held: Option<Instant>,
    /// Whether the store says how many wait.
    knows_waiters: bool,
    holders: HashMap<String, Holding>,
    grants: VecDeque<Instant>,
    waits: VecDeque<(Instant, Duration)>,
    holds: VecDeque<(Instant, Duration)>,
}

/// A holder that was there at the last look.
#[derive(Debug)]
struct Holding {
    /// Since when it has the lock: as the store says, else the earliest time that is possible.
    /// `None` for a holder that was there at the first look at the key.
    since: Option<SystemTime>,
}

/// What was seen of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sampled {
    /// Grants per second. A grant that came and went between two looks is not counted.
    pub(super) grants: Option<Figure<f64>>,
    /// The mean time from the request for the lock to the grant.
    pub(super) wait: Option<Figure<Duration>>,
    /// The mean time that a lock was held, of the leases that have ended.
    pub(super) hold: Option<Figure<Duration>>,
    /// Whether the store says how many wait.
    pub(super) knows_waiters: bool,
}

impl Samples {
    /// Adds a look, and compares it with the look before.
    pub(super) fn add(&mut self, look: &Look) {
        let covered = look.covers();
        let began = *self.began.get_or_insert(look.at);
        let mut before = std::mem::take(&mut self.keys);
        let last = self.last.take();
        for lock in &look.locks {
            // If the look before did not tell of this key, nobody knows how it was then.
            let last = last.as_ref().filter(|last| last.covered.has(&lock.key));
            let last = last.map(|last| last.clock);
            let mut history = before.remove(&lock.key).unwrap_or_else(|| History {
                began: last.is_none().then_some(look.at),
                ..History::default()
            });
            history.see(lock, look, last);
            self.keys.insert(lock.key.clone(), history);
        }
        // If this look does not tell of a key, nobody knows how it is now: it is dropped.
        before.retain(|key, _| covered.has(key));
        for (key, mut history) in before {
            let last = last.as_ref().map(|last| last.clock);
            history.end_all_but(&[], look.at, between(last, look.clock));
            self.keys.insert(key, history);
        }
        self.last = Some(Before {
            clock: look.clock,
            covered,
        });
        let earliest = look.at.checked_sub(WINDOW).unwrap_or(began);
        self.keys.retain(|_, history| {
            history.drop_before(earliest);
            !history.is_empty()
        });
    }

    /// What is known of a key at the time of the last look.
    pub(super) fn of(&self, key: &str, now: Instant) -> Sampled {
        let Some(history) = self.keys.get(key) else {
            return Sampled::default();
        };
        let watched = history
            .began
            .or(self.began)
            .map(|began| now.duration_since(began).min(WINDOW));
        let watched = watched.filter(|watched| !watched.is_zero());
        let rate = |watched: Duration| count(history.grants.len()) / watched.as_secs_f64();
        Sampled {
            grants: watched.map(rate).map(Figure::sample),
            wait: mean(&history.waits).map(Figure::sample),
            hold: mean(&history.holds).map(Figure::sample),
            knows_waiters: history.knows_waiters,
        }
    }

    /// The grants per second of all keys together.
    pub(super) fn grants(&self, now: Instant) -> Option<Figure<f64>> {
        let rates = self.keys.keys().map(|key| self.of(key, now).grants);
        let sum = rates.flatten().map(|rate| rate.value).sum();
        let watched = self.began.is_some_and(|began| now > began);
        watched.then(|| Figure::sample(sum))
    }

    /// The keys that were held lately.
    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.keys.keys()
    }
}

impl History {
    /// `last` is the time of the look before, if that look told of this key.
    fn see(&mut self, lock: &LockInfo, look: &Look, last: Option<SystemTime>) {
        self.held = (!lock.holders.is_empty()).then_some(look.at).or(self.held);
        self.knows_waiters = lock.waiters.is_some();
        let is_new = |holder: &&HolderInfo| !self.holders.contains_key(&holder.owner);
        let new: Vec<_> = lock.holders.iter().filter(is_new).collect();
        // A lock for writing has one holder at a time: the time of the one has ended when that of
        // the next began.
        let handed_on = match (lock.mode, &new[..]) {
            (Mode::Write, [next]) => next.since,
            _ => None,
        };
        let ended = handed_on.unwrap_or_else(|| between(last, look.clock));
        self.end_all_but(&lock.holders, look.at, ended);
        for holder in new {
            let asked = holder.process.as_ref().map(|process| process.asked_at);
            // It began after the last look, and after the lock was asked for.
            let earliest = last.map(|last| asked.unwrap_or(last).max(last).min(look.clock));
            let since = holder.since.or(earliest);
            if last.is_some() {
                self.grants.push_back(look.at);
            }
            if let (Some(since), Some(asked)) = (since, asked) {
                // The times may be by different clocks. If the grant seems to come before the
                // request, the wait is zero.
                let wait = since.duration_since(asked).unwrap_or_default();
                self.waits.push_back((look.at, wait));
            }
            self.holders.insert(holder.owner.clone(), Holding { since });
        }
    }

    /// Removes the holders that are not in `holders`: the look at `at` shows that their leases have
    /// ended, and `ended` is when.
    fn end_all_but(&mut self, holders: &[HolderInfo], at: Instant, ended: SystemTime) {
        let Self { holds, .. } = self;
        self.holders.retain(|owner, holding| {
            let is_there = holders.iter().any(|holder| holder.owner == *owner);
            if let (false, Some(since)) = (is_there, holding.since) {
                holds.push_back((at, ended.duration_since(since).unwrap_or_default()));
            }
            is_there
        });
    }

    fn drop_before(&mut self, earliest: Instant) {
        self.held = self.held.filter(|at| *at >= earliest);
        self.grants.retain(|at| *at >= earliest);
        self.waits.retain(|(at, _)| *at >= earliest);
        self.holds.retain(|(at, _)| *at >= earliest);
    }

    fn is_empty(&self) -> bool {
        self.holders.is_empty()
            && self.held.is_none()
            && self.grants.is_empty()
            && self.waits.is_empty()
            && self.holds.is_empty()
    }
}

/// The middle of the time between two looks, as a guess when something ended between them.
fn between(last: Option<SystemTime>, now: SystemTime) -> SystemTime {
    let time = last.and_then(|last| now.duration_since(last).ok());
    now - time.unwrap_or_default() / 2
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

fn mean(times: &VecDeque<(Instant, Duration)>) -> Option<Duration> {
    let sum: Duration = times.iter().map(|(_, time)| *time).sum();
    let number = u32::try_from(times.len())
        .ok()
        .filter(|number| *number > 0)?;
    Some(sum / number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn moment(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    /// Held by the request of this number, which asked at this second.
    fn held(key: &str, number: u64, asked: u64) -> LockInfo {
        let asked = (1_700_000_000 + asked) * 1000;
        let owner = format!("00000000000000ff.{number}@web-3,42,shop,{asked}");
        let holder = HolderInfo::new(owner, Some(SECOND));
        assert!(holder.process.is_some(), "{holder:?}");
        LockInfo::new(key.to_owned(), Mode::Write, vec![holder], 0)
    }

    struct Looks(Instant, Samples);

    impl Looks {
        fn new() -> Self {
            Self(Instant::now(), Samples::default())
        }

        fn at(&mut self, second: u64, locks: Vec<LockInfo>) {
            self.at_the_first(second, locks, 0);
        }

        /// The same, with so many other locks that were not looked at.
        fn at_the_first(&mut self, second: u64, locks: Vec<LockInfo>, others: usize) {
            self.1.add(&Look {
                at: self.0 + SECOND * u32::try_from(second).expect("small"),
                clock: moment(second),
                locks,
                others,
            });
        }

        fn of(&self, key: &str, second: u32) -> Sampled {
            self.1.of(key, self.0 + SECOND * second)
        }
    }

    #[test]
    fn one_look_tells_of_no_grant() {
        let mut looks = Looks::new();
        looks.at(10, vec![held("k", 1, 0)]);
        assert_eq!(looks.of("k", 10).grants, None);
        assert_eq!(looks.of("k", 10).wait, None);
        looks.at(12, vec![held("k", 1, 0)]);
        assert_eq!(looks.of("k", 12).grants, Some(Figure::sample(0.0)));
        assert_eq!(looks.of("k", 12).hold, None);
    }

    #[test]
    fn another_holder_is_a_grant_and_the_end_of_a_hold() {
        let mut looks = Looks::new();
        looks.at(0, vec![held("k", 1, 0)]);
        looks.at(2, vec![held("k", 2, 1)]);
        looks.at(4, vec![held("k", 3, 1)]);
        let seen = looks.of("k", 4);
        assert_eq!(seen.grants, Some(Figure::sample(0.5)));
        // Both asked at 1. The first new holder has it from 1 on at the earliest, the second from 2
        // on.
        assert_eq!(seen.wait, Some(Figure::sample(SECOND / 2)));
        // Nobody knows since when the first holder had it.
        assert_eq!(seen.hold, Some(Figure::sample(SECOND * 2)));
        assert_eq!(looks.of("other", 4), Sampled::default());
    }

    #[test]
    fn what_is_not_among_the_first_any_more_is_not_known_to_have_ended() {
        let mut looks = Looks::new();
        looks.at_the_first(0, vec![held("b", 1, 0), held("c", 2, 0)], 1);
        looks.at_the_first(2, vec![held("a", 3, 1), held("c", 2, 0)], 1);
        assert_eq!(looks.of("b", 2).grants, Some(Figure::sample(0.0)), "free");
        looks.at_the_first(4, vec![held("a", 3, 1), held("b", 4, 3)], 2);
        assert_eq!(looks.of("c", 4), Sampled::default());
        assert_eq!(looks.1.keys().collect::<Vec<_>>(), ["a", "b"]);
    }

    /// It may have been held all along, because the first look did not tell of it.
    #[test]
    fn what_comes_among_the_first_is_no_grant() {
        let mut looks = Looks::new();
        looks.at_the_first(0, vec![held("a", 1, 0), held("b", 2, 0)], 1);
        looks.at_the_first(30, vec![held("b", 2, 0), held("c", 3, 0)], 0);
        assert_eq!(
            (looks.of("c", 30).grants, looks.of("c", 30).wait),
            (None, None)
        );
        looks.at(32, vec![held("c", 3, 0)]);
        let seen = looks.of("c", 32);
        assert_eq!(seen.grants, Some(Figure::sample(0.0)));
        assert_eq!((seen.wait, seen.hold), (None, None));
        // It counts from its first look on: one grant within four seconds.
        looks.at(34, vec![held("c", 4, 33)]);
        assert_eq!(looks.of("c", 34).grants, Some(Figure::sample(0.25)));
        // The look before told of all keys, so this new one is a grant.
        looks.at(36, vec![held("c", 4, 33), held("d", 5, 35)]);
        assert_ne!(looks.of("d", 36).grants, Some(Figure::sample(0.0)));
    }

    #[test]
    fn the_store_knows_since_when() {
        let mut looks = Looks::new();
        let mut lock = held("k", 1, 2);
        lock.holders[0].since = Some(moment(3));
        looks.at(10, vec![lock]);
        assert_eq!(looks.of("k", 10).wait, Some(Figure::sample(SECOND)));
        looks.at(11, Vec::new());
        let held = SECOND * 7 + SECOND / 2;
        assert_eq!(looks.of("k", 11).hold, Some(Figure::sample(held)));
        assert_eq!(
            looks.1.keys().collect::<Vec<_>>(),
            ["k"],
            "it is still shown"
        );
    }

    #[test]
    fn a_lock_that_is_handed_on_was_held_until_then() {
        let mut looks = Looks::new();
        for (second, number, since) in [(4, 1, 3), (10, 2, 8)] {
            let mut lock = held("k", number, 2);
            lock.holders[0].since = Some(moment(since));
            looks.at(second, vec![lock]);
        }
        assert_eq!(looks.of("k", 10).hold, Some(Figure::sample(SECOND * 5)));
    }

    #[test]
    fn nothing_is_kept_for_longer_than_the_window() {
        let mut looks = Looks::new();
        looks.at(0, Vec::new());
        looks.at(1, vec![held("k", 1, 0)]);
        looks.at(2, Vec::new());
        looks.at(61, Vec::new());
        assert!(looks.of("k", 61).grants.is_some());
        looks.at(63, Vec::new());
        assert_eq!(looks.1.keys().count(), 0);
    }
}
