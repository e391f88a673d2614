//! Whether each call ended in time, and was told what was so.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::call::{Call, Outcome, Policy};
use crate::moment::Moment;
use crate::worker::{BRIEFLY, DROPPED_AFTER, LONGEST, PATIENTLY, REQUEST_TIMEOUT};

/// What is on its way to a server when it falls silent, or from it, has arrived by then.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_millis(200);

/// An outage that is shorter says nothing yet.
const OUTAGE: Duration = Duration::from_millis(500);

/// On a machine that others use too.
const GRACE: Duration = Duration::from_secs(3);

/// What a request may do after a fault that began before its end, and a second one.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// A process that stood still for so long may have lost what it had, and the answers to it.
const STILL: Duration = Duration::from_millis(500);

/// Of the calls that no fault meets, and that did not wait in vain for somebody else.
const LEAST_DONE: f64 = 0.75;

/// A fault, from its begin until it was healed.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) from: Moment,
    pub(crate) to: Moment,
    /// The worker that it happened to; none if it was the store, or the way there.
    pub(crate) worker: Option<String>,
}

/// What is known of the faults of a history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judge {
    pub(crate) troubles: Vec<Trouble>,
    /// When these workers were killed.
    pub(crate) killed: BTreeMap<String, Moment>,
    /// From when to when nobody could be answered.
    pub(crate) dark: Vec<(Moment, Moment)>,
    /// In the dark, it can still be read who has a lock.
    pub(crate) is_readable: bool,
}

impl Judge {
    /// What is wrong with a call of this worker, which told of all these.
    pub(crate) fn violation(&self, name: &str, call: &Call, told: &[Call]) -> Option<String> {
        let from = call.from;
        if let Some(wrong) = out_of_time(call) {
            return Some(format!("{name} was kept too long ({wrong}): {call}"));
        }
        match &call.outcome {
            Outcome::Other(error) => Some(format!("{name} was told {error:?}: {call}")),
            Outcome::Busy | Outcome::Timeout => self.hid_an_outage(name, call, told),
            Outcome::Unavailable => self.saw_no_outage(name, call, told),
            Outcome::Lost => {
                let had = call.entered.unwrap_or(from);
                let unfounded = !self.is_troubled(name, call, had);
                unfounded.then(|| format!("{name} lost its lock for no reason: {call}"))
            }
            Outcome::Outdated => {
                let unfounded = !self.is_troubled(name, call, from);
                unfounded.then(|| format!("{name} came too late for no reason: {call}"))
            }
            Outcome::Done | Outcome::Dropped => None,
        }
    }

    /// Unless the store was silent for all of a short time, as it may be on a machine that others
    /// use too, or was not connected yet.
    fn saw_no_outage(&self, name: &str, call: &Call, told: &[Call]) -> Option<String> {
        let silent = call.to.since(call.from) >= BRIEFLY;
        let brief = matches!(call.policy, Policy::Briefly | Policy::Dropped);
        let connected = told.iter().any(|other| {
            let answered = matches!(other.outcome, Outcome::Done | Outcome::Busy);
            answered && other.to < call.from
        });
        let may_be_slow = silent && (brief || !connected);
        let unfounded = !may_be_slow && !self.is_troubled(name, call, call.from);
        unfounded.then(|| format!("{name} was told of an outage, and there was none: {call}"))
    }

    /// Whether a fault that concerns this worker met the call, or had just ended.
    fn is_troubled(&self, name: &str, call: &Call, from: Moment) -> bool {
        let met = |trouble: &Trouble| {
            trouble.concerns(name)
                && trouble.from <= call.to
                && from.since(trouble.to) <= AFTERWARDS + 2 * call.still
        };
        call.still >= STILL || self.troubles.iter().any(met)
    }

    /// If nobody could be asked, that is what a call is told.
    fn hid_an_outage(&self, name: &str, call: &Call, told: &[Call]) -> Option<String> {
        let Call { from, to, .. } = *call;
        let too_short = to.since(from) < OUTAGE;
        if call.outcome == Outcome::Timeout && (too_short || self.is_readable) {
            return None;
        }
        // A call that the kill cut short may have had the lock, and nothing is told of it.
        let untold = LONGEST + 2 * REQUEST_TIMEOUT + GRACE;
        let killed = self.killed.get(name);
        if killed.is_some_and(|killed| killed.since(to) <= untold) {
            return None;
        }
        let in_the_dark = |(begun, ended): &&(Moment, Moment)| {
            *begun < from && from.since(*begun) > ON_ITS_WAY && to < *ended
        };
        let (begun, ended) = self.dark.iter().find(in_the_dark)?;
        let others = || told.iter().filter(|other| other.key == call.key);
        // Another task of the same process may hold it, which needs no store.
        if others().any(|other| had_it_meanwhile(other, call)) {
            return None;
        }
        let meanwhile = others().filter(|other| other.from < *ended && *begun < other.to);
        let meanwhile: String = meanwhile.map(|other| format!("\n  {other}")).collect();
        Some(format!(
            "{name} was told of no outage: {call}; nobody could be asked from {begun} to {ended}, \
             with {meanwhile}"
        ))
    }

    /// How many calls were done that no fault met, and how many had an error in spite of that; or
    /// what is wrong with all of them together: a store that serves nobody.
    pub(crate) fn served(&self, calls: &[(&str, Vec<Call>)]) -> Result<[usize; 2], String> {
        let mut outcomes = BTreeMap::<&Outcome, usize>::new();
        for (name, told) in calls {
            let met = |call: &Call| {
                let meets = |trouble: &Trouble| {
                    trouble.concerns(name) && trouble.from <= call.to && call.from <= trouble.to
                };
                call.still >= STILL || self.troubles.iter().any(meets)
            };
            for call in told.iter().filter(|call| !met(call)) {
                *outcomes.entry(&call.outcome).or_default() += 1;
            }
        }
        let count = |outcome| outcomes.get(&outcome).copied().unwrap_or_default();
        let done = count(&Outcome::Done);
        let not_done = count(&Outcome::Unavailable) + count(&Outcome::Lost);
        let enough = done > 0 && done as f64 >= LEAST_DONE * (done + not_done) as f64;
        match enough {
            true => Ok([done, not_done]),
            false => Err(format!(
                "few calls were done that no fault met: {outcomes:?}"
            )),
        }
    }
}

impl Trouble {
    fn concerns(&self, worker: &str) -> bool {
        self.worker.as_ref().is_none_or(|hit| hit == worker)
    }
}

/// Whether a call of the same process had the lock at a moment of this one: its body had begun,
/// and the call was not over. What is told of that may be a moment late.
fn had_it_meanwhile(other: &Call, call: &Call) -> bool {
    other.entered.is_some_and(|entered| {
        entered.since(call.to) <= ON_ITS_WAY && call.from.since(other.to) <= ON_ITS_WAY
    })
}

/// Which part of the call took too long.
fn out_of_time(call: &Call) -> Option<Long> {
    let allowed = |limit: Duration| limit.mul_f64(1.02) + 2 * call.still + GRACE;
    let long = |what, took: Duration, limit| {
        let allowed = allowed(limit);
        (took > allowed).then_some(Long {
            what,
            took,
            allowed,
        })
    };
    let waits = match call.policy {
        // Asked once more where nobody heard the answer.
        Policy::Try => 3 * REQUEST_TIMEOUT,
        Policy::Briefly => BRIEFLY,
        Policy::Patiently | Policy::Stubbornly | Policy::Reads | Policy::Shares => PATIENTLY,
        Policy::Dropped => DROPPED_AFTER,
    };
    let entered = call.entered.unwrap_or(call.to);
    let waited = long("waited", entered.since(call.from), waits);
    let body = call.left.unwrap_or(call.to).since(entered);
    let given_back = call.left.map(|left| call.to.since(left));
    waited
        .or_else(|| long("was inside", body, LONGEST))
        .or_else(|| long("gave its lock back", given_back?, 2 * REQUEST_TIMEOUT))
}

struct Long {
    what: &'static str,
    took: Duration,
    allowed: Duration,
}

impl fmt::Display for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            took,
            allowed,
        } = self;
        write!(f, "it {what} for {took:?}, of {allowed:?} at most")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::{Call, Judge, Moment, Outcome, Policy, Trouble};

    /// Milliseconds since the history began.
    fn at(millis: u64) -> Moment {
        Moment::from_micros(1 + 1_000 * millis)
    }

    fn call(policy: Policy, from: u64, to: u64, outcome: Outcome) -> Call {
        Call {
            key: 0,
            policy,
            from: at(from),
            entered: None,
            left: None,
            to: at(to),
            still: Duration::ZERO,
            token: 0,
            outcome,
        }
    }

    /// The store is dark from the tenth second to the thirteenth, and `w1` is paused from the
    /// thirtieth to the thirty-second.
    fn judge() -> Judge {
        let trouble = |from, to, worker: Option<&str>| Trouble {
            from: at(from),
            to: at(to),
            worker: worker.map(str::to_owned),
        };
        Judge {
            troubles: vec![
                trouble(10_000, 13_000, None),
                trouble(30_000, 32_000, Some("w1")),
            ],
            killed: BTreeMap::new(),
            dark: vec![(at(10_000), at(13_000))],
            is_readable: false,
        }
    }

    fn is_wrong(call: &Call) -> bool {
        judge()
            .violation("w0", call, std::slice::from_ref(call))
            .is_some()
    }

    #[test]
    fn a_call_that_takes_long_is_seen_unless_its_process_stood_still() {
        for (policy, limit) in [
            (Policy::Try, 6_000),
            (Policy::Briefly, 600),
            (Policy::Patiently, 5_000),
            (Policy::Stubbornly, 5_000),
            (Policy::Reads, 5_000),
            (Policy::Shares, 5_000),
            (Policy::Dropped, 1_000),
        ] {
            let mut long = call(policy, 0, limit + 3_500, Outcome::Done);
            assert!(is_wrong(&long), "{policy:?}");
            long.still = Duration::from_secs(1);
            assert!(!is_wrong(&long), "{policy:?}");
            assert!(!is_wrong(&call(policy, 0, limit, Outcome::Done)));
        }
        // What the brief bounds once let pass.
        assert!(is_wrong(&call(Policy::Try, 0, 170_000, Outcome::Busy)));
    }

    #[test]
    fn each_part_of_a_call_has_its_bound() {
        let parts = |entered, left, to| Call {
            entered: Some(at(entered)),
            left: Some(at(left)),
            ..call(Policy::Try, 0, to, Outcome::Done)
        };
        assert!(!is_wrong(&parts(5_000, 9_000, 12_000)));
        assert!(is_wrong(&parts(10_000, 10_001, 10_002)));
        assert!(is_wrong(&parts(1_000, 9_000, 9_001)));
        assert!(is_wrong(&parts(1_000, 2_000, 10_000)));
    }

    #[test]
    fn an_outage_is_neither_busy_nor_a_timeout() {
        for outcome in [Outcome::Busy, Outcome::Timeout] {
            let told = |from, to| is_wrong(&call(Policy::Briefly, from, to, outcome.clone()));
            assert!(told(11_000, 11_600), "{outcome:?}");
            // An answer was on its way; the outage was over; there was none.
            assert!(!told(10_100, 10_700));
            assert!(!told(12_500, 13_100));
            assert!(!told(20_000, 20_600));
        }
        let told = |outcome| is_wrong(&call(Policy::Briefly, 11_000, 11_400, outcome));
        assert!(told(Outcome::Busy));
        assert!(!told(Outcome::Timeout), "it is too short to say");
    }

    /// As in SQLite's file while somebody else keeps it from being written.
    #[test]
    fn who_reads_that_a_lock_is_held_waits_for_it() {
        for (outcome, may_be) in [(Outcome::Timeout, true), (Outcome::Busy, false)] {
            let judge = Judge {
                is_readable: true,
                ..judge()
            };
            let told = call(Policy::Briefly, 11_000, 11_600, outcome);
            let violation = judge.violation("w0", &told, std::slice::from_ref(&told));
            assert_eq!(violation.is_none(), may_be);
        }
    }

    #[test]
    fn a_store_may_be_slow_for_a_short_time_and_at_first() {
        for (policy, took, connected, may_be) in [
            (Policy::Briefly, 600, true, true),
            (Policy::Briefly, 100, true, false),
            (Policy::Try, 2_000, true, false),
            (Policy::Try, 2_000, false, true),
            (Policy::Try, 100, false, false),
            (Policy::Patiently, 600, true, false),
        ] {
            let mut told = vec![call(policy, 25_000, 25_000 + took, Outcome::Unavailable)];
            if connected {
                told.push(call(Policy::Try, 24_000, 24_001, Outcome::Busy));
            }
            let violation = judge().violation("w0", &told[0], &told);
            assert_eq!(
                violation.is_none(),
                may_be,
                "{policy:?}, {took}, {connected}"
            );
        }
    }

    /// A call that was dropped counted from its begin, whether or not it ever had the lock.
    #[test]
    fn only_who_had_the_lock_excuses_busy_in_an_outage() {
        let busy = call(Policy::Try, 11_000, 11_001, Outcome::Busy);
        for (entered, is_seen) in [(None, true), (Some(at(10_500)), false)] {
            let dropped = Call {
                entered,
                ..call(Policy::Dropped, 10_400, 11_300, Outcome::Dropped)
            };
            let told = [busy.clone(), dropped];
            let violation = judge().violation("w0", &busy, &told);
            assert_eq!(violation.is_some(), is_seen);
        }
        let over = Call {
            entered: Some(at(10_000)),
            ..call(Policy::Dropped, 9_900, 10_700, Outcome::Dropped)
        };
        let told = [busy.clone(), over];
        assert!(judge().violation("w0", &busy, &told).is_some());
    }

    /// What it did last is not told.
    #[test]
    fn a_killed_worker_may_have_had_the_lock_in_an_outage() {
        let busy = call(Policy::Try, 11_000, 11_001, Outcome::Busy);
        for (worker, killed, is_seen) in [
            ("w0", 14_000, false),
            ("w0", 24_000, true),
            ("w1", 14_000, true),
        ] {
            let judge = Judge {
                killed: [(worker.to_owned(), at(killed))].into(),
                ..judge()
            };
            let violation = judge.violation("w0", &busy, std::slice::from_ref(&busy));
            assert_eq!(violation.is_some(), is_seen, "{worker}, {killed}");
        }
    }

    #[test]
    fn an_error_needs_a_fault_of_its_worker_or_of_the_store() {
        for outcome in [Outcome::Unavailable, Outcome::Lost] {
            let mut told = call(Policy::Patiently, 25_000, 25_300, outcome.clone());
            assert!(is_wrong(&told), "{outcome:?}");
            told.still = Duration::from_secs(1);
            assert!(!is_wrong(&told), "its machine stood still");
            let near = call(Policy::Patiently, 15_000, 16_000, outcome.clone());
            assert!(!is_wrong(&near));
            // Somebody else stood still.
            let told = call(Policy::Patiently, 31_000, 31_300, outcome.clone());
            assert!(is_wrong(&told));
            let violation = judge().violation("w1", &told, &[]);
            assert_eq!(violation, None);
        }
        // It had the lock only after the outage.
        let lost = Call {
            entered: Some(at(18_500)),
            ..call(Policy::Patiently, 14_000, 19_000, Outcome::Lost)
        };
        assert!(is_wrong(&lost));
    }

    #[test]
    fn a_store_that_serves_few_is_seen() {
        let of = |done: usize, unavailable: usize, from| {
            let all = [(done, Outcome::Done), (unavailable, Outcome::Unavailable)];
            let all = all.into_iter().flat_map(|(count, outcome)| {
                std::iter::repeat_n(call(Policy::Try, from, from + 1, outcome), count)
            });
            judge().served(&[("w0", all.collect())]).is_err()
        };
        assert!(of(1, 99, 20_000));
        assert!(of(0, 0, 20_000));
        assert!(of(60, 40, 20_000));
        assert!(!of(80, 20, 20_000));
        // Nothing is known of what a fault has met.
        assert!(of(80, 20, 11_000));
    }
}
