//! What is to be said of all events in the end.

use super::{Event, History, What};

impl History {
    /// The number of excused violations, while the store may have forgotten or ended leases.
    pub fn excused(&self) -> usize {
        let excused = |event: &&Event| event.excuse.is_some();
        self.events.iter().filter(excused).count()
    }

    /// The newest token with which a worker has entered.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// How many times somebody has entered.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The counter's value.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Fails, and shows all events, unless a working lock explains them: no overlap, rising
    /// tokens, no lost update, and no refusals except of workers that were stopped.
    pub fn check(&self) {
        let (violations, all): (Vec<_>, _) = (self.violations().collect(), self.shown());
        assert!(violations.is_empty(), "{violations:#?}\nin\n{all}");
        let wrote = |event: &&Event| matches!(event.what, What::Wrote(_));
        let writes = self.events.iter().filter(wrote).count();
        assert_eq!(writes as u64, self.value, "a write was lost in\n{all}");
    }

    pub(super) fn violations(&self) -> impl Iterator<Item = &str> {
        let events = self.events.iter().filter(|event| event.excuse.is_none());
        events.filter_map(|event| match &event.what {
            What::Violation(what) | What::Overtook(_, what) => Some(what.as_str()),
            _ => None,
        })
    }

    fn of(&self, worker: &str) -> impl Iterator<Item = &What> {
        let events = self.events.iter();
        let of_it = events.filter(move |event| event.worker == worker);
        of_it.map(|event| &event.what)
    }

    /// The number of accepted writes of `worker`.
    pub fn writes_of(&self, worker: &str) -> usize {
        let wrote = |what: &&What| matches!(what, What::Wrote(_));
        self.of(worker).filter(wrote).count()
    }

    /// The most readers, or bodies with permits, that were inside together.
    pub fn most_readers(&self) -> usize {
        self.most_readers
    }

    /// How many times `worker` has entered.
    pub fn entries_of(&self, worker: &str) -> usize {
        let entered = |what: &&What| matches!(what, What::Entered);
        self.of(worker).filter(entered).count()
    }

    /// Whether `worker` is inside its critical section.
    pub fn is_inside(&self, worker: &str) -> bool {
        self.open.iter().any(|open| open.worker == worker)
    }

    /// What `worker` has reported.
    pub fn reports_of(&self, worker: &str) -> Vec<&str> {
        let reports = self.of(worker).filter_map(|what| match what {
            What::Reported(text) => Some(text.as_str()),
            _ => None,
        });
        reports.collect()
    }

    fn shown(&self) -> String {
        let line = |event: &Event| {
            let Event {
                at,
                worker,
                token,
                what,
                excuse,
            } = event;
            let at = at.as_secs_f64();
            let excuse = excuse.map_or_else(String::new, |excuse| format!(", excused: {excuse:?}"));
            format!("{at:.6} {worker} (token {token}): {what:?}{excuse}\n")
        };
        self.events.iter().map(line).collect()
    }
}
