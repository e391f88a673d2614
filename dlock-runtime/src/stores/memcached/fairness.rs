//! Lets other processes have the lock.
//!
//! memcached has no queue, and the process that releases a lock is the first to know that it is
//! free: a process that always wants the lock takes it again before any other process has seen it
//! free. Therefore, after a second of that, it pauses before it asks again, for as long as
//! waiters need to see the lock free.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::Mutex;

/// If the lock was free for longer than this, others had a chance to take it.
const SHORT: Duration = Duration::from_millis(25);
/// The longest pause. It is needed since waiters look less and less often at a lock that stays
/// with one process.
const LONG: Duration = Duration::from_millis(100);

/// How long a process may take a lock over and over before it lets others in.
const RUN: Duration = Duration::from_secs(1);
/// The pause is the length of the run divided by this.
const PART: u32 = 40;

/// The locks that this process gave back recently.
#[derive(Default)]
pub(super) struct FairnessPauses(Mutex<HashMap<Arc<str>, Run>>);

/// A series of leases of one lock, all of this process and with short gaps.
#[derive(Clone, Copy, Debug)]
struct Run {
    since: Instant,
    given_back: Instant,
}

impl Run {
    fn has_ended(self, now: Instant) -> bool {
        now.saturating_duration_since(self.given_back) > SHORT
    }
}

impl FairnessPauses {
    /// Notes that this process has given the lock back.
    pub(super) fn given_back(&self, key: &Arc<str>, now: Instant) {
        let mut runs = self.0.lock();
        // The table is full: remove the runs that have ended, and reserve as much room again as
        // the others need. A run continues while the lock is held; if it is removed meanwhile, it
        // starts again.
        if runs.len() == runs.capacity() {
            runs.retain(|_, run| !run.has_ended(now));
            let left = runs.len();
            runs.reserve(left.max(1));
        }
        let run = runs.entry(Arc::clone(key));
        let run = run.or_insert(Run {
            since: now,
            given_back: now,
        });
        run.given_back = now;
    }

    /// How long to leave the lock to others before asking for it.
    pub(super) fn pause(&self, key: &str, now: Instant) -> Option<Duration> {
        let mut runs = self.0.lock();
        let run = runs.get(key).copied()?;
        let lasted = now.saturating_duration_since(run.since);
        if !run.has_ended(now) && lasted < RUN {
            return None;
        }
        runs.remove(key);
        (!run.has_ended(now)).then(|| (lasted / PART).clamp(SHORT, LONG))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    fn key() -> Arc<str> {
        "key".into()
    }

    #[test]
    fn who_has_a_lock_over_and_over_lets_others_in_once_a_second() {
        let fairness = FairnessPauses::default();
        let start = Instant::now();
        let mut now = start;
        let mut pauses = 0;
        while now < start + 10 * RUN {
            if let Some(pause) = fairness.pause("key", now) {
                assert!((SHORT..=LONG).contains(&pause), "{pause:?}");
                pauses += 1;
                now += pause;
            }
            now += 5 * MOMENT;
            fairness.given_back(&key(), now);
            now += MOMENT;
        }
        assert!((8..=10).contains(&pauses), "{pauses} pauses");
    }

    #[test]
    fn who_leaves_it_free_does_not_wait() {
        let fairness = FairnessPauses::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            assert_eq!(fairness.pause("key", now), None);
            assert_eq!(fairness.pause("another", now), None);
            fairness.given_back(&key(), now + RUN);
            now += RUN + SHORT + MOMENT;
        }
    }

    #[test]
    fn what_is_long_past_is_forgotten() {
        let fairness = FairnessPauses::default();
        let mut now = Instant::now();
        for number in 0..100 {
            fairness.given_back(&format!("key:{number}").into(), now);
            now += SHORT + MOMENT;
        }
        let runs = fairness.0.lock();
        assert!(runs.len() <= runs.capacity() && runs.capacity() < 10);
    }
}
