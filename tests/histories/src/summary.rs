//! What the histories of one store came to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::call::Outcome;
use crate::ended::Ended;
use crate::fault::Fault;
use crate::history::{FAULTS, LEAST};

#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) store: &'static str,
    pub(crate) histories: u64,
    failed: usize,
    /// How many had nothing to judge.
    not_started: usize,
    calls: BTreeMap<Outcome, usize>,
    faults: BTreeMap<Fault, usize>,
    excused: usize,
    /// How many keys of locks have moved with slots.
    moved: usize,
    /// How many calls were done that no fault met, and how many had an error.
    served: [usize; 2],
    /// The most readers that had a lock together, or bodies with permits.
    readers: usize,
    lasted: Duration,
    /// How many had passwords and encrypted connections, and clocks that were set.
    secure: usize,
    spoiled: usize,
    /// How many had leases that nothing but a release ended.
    lasting: usize,
}

impl Summary {
    pub(crate) fn of(store: &'static str) -> Self {
        Self {
            store,
            histories: 0,
            failed: 0,
            not_started: 0,
            calls: BTreeMap::new(),
            faults: BTreeMap::new(),
            excused: 0,
            moved: 0,
            served: [0, 0],
            readers: 0,
            lasted: Duration::ZERO,
            secure: 0,
            spoiled: 0,
            lasting: 0,
        }
    }

    /// One more.
    pub(crate) fn add(&mut self, ended: Ended) {
        self.histories += 1;
        let outcomes = match ended {
            Ended::Judged(outcomes) => outcomes,
            Ended::Failed(_) => {
                self.failed += 1;
                return;
            }
            Ended::DidNotStart(_) => {
                self.not_started += 1;
                return;
            }
        };
        let faults: usize = outcomes.faults.values().sum();
        assert!(outcomes.lasted >= LEAST && faults >= FAULTS, "{outcomes:?}");
        self.lasted += outcomes.lasted;
        self.secure += usize::from(outcomes.setting.secure);
        self.spoiled += usize::from(outcomes.setting.spoiled);
        self.lasting += usize::from(outcomes.setting.lasting);
        for (outcome, count) in outcomes.calls {
            *self.calls.entry(outcome).or_default() += count;
        }
        for (fault, count) in outcomes.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        self.excused += outcomes.excused;
        self.moved += outcomes.moved;
        for (all, count) in self.served.iter_mut().zip(outcomes.served) {
            *all += count;
        }
        self.readers = self.readers.max(outcomes.readers);
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            store,
            histories,
            failed,
            not_started,
            excused,
            moved,
            served: [done, not_done],
            readers,
            secure,
            spoiled,
            lasting,
            ..
        } = self;
        let seconds = self.lasted.as_secs();
        write!(f, "{store}: {histories} histories, {failed} failed")?;
        if *not_started > 0 {
            write!(f, ", {not_started} did not start")?;
        }
        write!(f, "\n  {seconds} s; {secure} with passwords or TLS, ")?;
        write!(f, "{spoiled} with clocks and disks that can be spoiled, ")?;
        write!(f, "{lasting} with leases that outlast them")?;
        write!(f, "\n  calls:")?;
        for (outcome, count) in &self.calls {
            write!(f, " {count} {outcome},")?;
        }
        write!(
            f,
            "\n  of those that no fault met, {done} done, {not_done} with an error"
        )?;
        write!(f, "\n  faults:")?;
        for (fault, count) in &self.faults {
            write!(f, " {count} {fault},")?;
        }
        if *readers > 0 {
            write!(
                f,
                "\n  at most {readers} readers, or bodies with permits, together"
            )?;
        }
        if *moved > 0 {
            write!(f, "\n  {moved} keys of locks moved with their slots")?;
        }
        if *excused > 0 {
            let page = "while the store may have forgotten or ended leases, as its page says";
            write!(f, "\n  excused: {excused}, {page}")?;
        }
        Ok(())
    }
}
