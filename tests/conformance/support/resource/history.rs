//! The events at the resource, in order, and whether a working lock explains them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// One event, with the worker and its token.
#[derive(Clone, Debug)]
struct Event {
    at: Duration,
    worker: String,
    token: u64,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Entered,
    Wrote(u64),
    Left,
    /// It made this request with an older token than an earlier worker.
    Refused(&'static str),
    /// The same, but the request was sent before the other worker entered, and took long.
    Late(&'static str),
    Reported(String),
    /// Something that a working lock never allows.
    Violation(String),
    /// It entered while a body with this token was inside. A working lock does not allow that if
    /// that body still does anything afterwards.
    Overtook(u64, String),
    /// A violation while the store may have forgotten grants or ended leases early.
    Excused(String),
}

/// How a worker enters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// Other readers may be inside too.
    pub(super) reads: bool,
    /// When it asked for its lock, if it reports that. A worker that was stopped may come late
    /// only with a lock that it had asked for before.
    pub(super) asked: Option<u128>,
}

/// A critical section that was entered and not left.
#[derive(Clone, Debug)]
struct Open {
    worker: String,
    token: u64,
    entry: Entry,
    /// The worker was stopped or killed while it was inside.
    suspended: bool,
}

/// The events, and the state for judging the next one.
#[derive(Clone, Debug)]
pub struct History {
    begun: Instant,
    events: Vec<Event>,
    value: u64,
    /// `last`: the highest number so far. `newest`: requests with a lower number are refused.
    last: u64,
    newest: u64,
    /// When the present request was sent, and when the worker with the newest token entered.
    sent: u128,
    newest_sent: u128,
    open: Vec<Open>,
    /// The workers that are stopped or dead now.
    suspended: HashSet<String>,
    /// The workers that ever were, and until when. They may come late.
    suspects: HashMap<String, u128>,
    /// When the bodies with these tokens asked for their lock.
    asked: HashMap<u64, u128>,
    /// The most readers that were inside together.
    most_readers: usize,
    /// The tokens of bodies beside which another worker entered.
    overtaken: HashSet<u64>,
    /// The store may have forgotten what it granted.
    doubt: bool,
    /// Leases may end before their time.
    early: bool,
}

impl Default for History {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            events: Vec::new(),
            value: 0,
            last: 0,
            newest: 0,
            sent: 0,
            newest_sent: 0,
            open: Vec::new(),
            suspended: HashSet::new(),
            suspects: HashMap::new(),
            asked: HashMap::new(),
            most_readers: 0,
            overtaken: HashSet::new(),
            doubt: false,
            early: false,
        }
    }
}

/// A value, or the newest token that somebody else has shown.
type Answer = Result<u64, u64>;

impl History {
    pub(super) fn suspended(&mut self, worker: &str) {
        self.suspended.insert(worker.to_owned());
        self.suspects.insert(worker.to_owned(), u128::MAX);
        for open in self.open.iter_mut().filter(|open| open.worker == worker) {
            open.suspended = true;
        }
    }

    pub(super) fn resumed(&mut self, worker: &str, moment: u128) {
        self.suspended.remove(worker);
        self.suspects.insert(worker.to_owned(), moment);
    }

    /// Whether a worker may come after its lease has ended.
    fn may_be_late(&self, worker: &str, asked: Option<u128>) -> bool {
        let until = self.suspects.get(worker);
        until.is_some_and(|until| asked.is_none_or(|asked| asked <= *until))
    }

    pub(super) fn doubts(&mut self, doubt: bool) {
        self.doubt = doubt;
        if !doubt {
            // Tokens may start again below the forgotten ones.
            self.newest = 0;
        }
    }

    pub(super) fn ends_leases(&mut self, ends: bool) {
        self.early = ends;
    }

    /// Whether bodies may overlap now.
    fn may_overlap(&self) -> bool {
        self.doubt || self.early
    }

    pub(super) fn hears_what_was_sent_at(&mut self, moment: u128) {
        self.sent = moment;
    }

    pub(super) fn report(&mut self, worker: &str, text: &str) {
        self.note(worker, 0, What::Reported(text.to_owned()));
    }

    /// Returns the number that the worker must show from now on: the token, or for a grant
    /// without one (0), the next number.
    pub(super) fn enter(&mut self, worker: &str, token: u64, entry: Entry) -> Answer {
        let excludes = |open: &Open| !(open.entry.reads && entry.reads);
        let ends_others = self.open.iter().any(excludes);
        let token = match token {
            0 => match self.count_in(worker, entry) {
                Some(number) => number,
                None => return self.refuse(worker, token, "enter", entry.asked),
            },
            token => token,
        };
        // Each grant has a token of its own, so an equal one is also refused.
        if token <= self.newest {
            return self.refuse(worker, token, "enter", entry.asked);
        }
        let overlaps = self.open.iter().filter(|open| excludes(open));
        let overlaps = overlaps.filter(|open| !open.suspended);
        for open in overlaps.cloned().collect::<Vec<_>>() {
            let (other, its) = (open.worker, open.token);
            let what = format!("came in while {other} (token {its}) was inside");
            self.violation(worker, token, what);
            if let Some(Event { what, .. }) = self.events.last_mut()
                && let What::Violation(text) = what
            {
                *what = What::Overtook(its, std::mem::take(text));
                self.overtaken.insert(its);
            }
        }
        self.open.retain(|open| !excludes(open));
        self.last = self.last.max(token);
        // Readers do not refuse each other.
        if !entry.reads || ends_others {
            self.newest = token;
            self.newest_sent = self.sent;
        }
        self.asked.extend(entry.asked.map(|asked| (token, asked)));
        // A request that was sent before the process was stopped may arrive after that.
        let suspended = self.suspended.contains(worker);
        self.open.push(Open {
            worker: worker.to_owned(),
            token,
            entry,
            suspended,
        });
        if entry.reads {
            self.most_readers = self.most_readers.max(self.open.len());
        }
        self.note(worker, token, What::Entered);
        Ok(token)
    }

    /// The number of the next grant, if it has no token. Without tokens, only the time reveals
    /// late workers: one that was stopped before and comes while another is inside is refused,
    /// and one that is inside is overtaken.
    fn count_in(&mut self, worker: &str, entry: Entry) -> Option<u64> {
        let mut open = std::mem::take(&mut self.open);
        let excludes = |open: &Open| !(open.entry.reads && entry.reads);
        open.retain(|open| !excludes(open) || !self.may_be_late(&open.worker, open.entry.asked));
        let late = self.may_be_late(worker, entry.asked) && open.iter().any(excludes);
        self.open = open;
        (!late).then_some(self.last + 1)
    }

    pub(super) fn read(&mut self, worker: &str, token: u64) -> Answer {
        if token < self.newest {
            return self.refuse_later(worker, token, "read");
        }
        Ok(self.value)
    }

    pub(super) fn write(&mut self, worker: &str, token: u64, value: u64) -> Answer {
        if token < self.newest {
            return self.refuse_later(worker, token, "write");
        }
        if value != self.value + 1 {
            let what = format!("wrote {value} over {}", self.value);
            self.violation(worker, token, what);
        }
        // While overlaps are allowed, a lost update counts as one more write.
        self.value = if self.may_overlap() {
            self.value + 1
        } else {
            value
        };
        self.note(worker, token, What::Wrote(self.value));
        Ok(value)
    }

    pub(super) fn leave(&mut self, worker: &str, token: u64) -> Answer {
        if token < self.newest {
            if self.sent < self.newest_sent {
                self.gone(token);
            }
            return self.refuse_later(worker, token, "leave");
        }
        self.open.retain(|open| open.token != token);
        self.note(worker, token, What::Left);
        Ok(self.value)
    }

    /// The body with this token was dropped: it has done nothing since its last request.
    pub(super) fn gone(&mut self, token: u64) {
        self.open.retain(|open| open.token != token);
        if !self.overtaken.remove(&token) {
            return;
        }
        let acted = |event: &Event| event.token == token && matches!(event.what, What::Refused(_));
        if self.events.iter().any(acted) {
            return;
        }
        let overtook = |what: &What| matches!(what, What::Overtook(its, _) if *its == token);
        self.events.retain(|event| !overtook(&event.what));
    }

    /// Refuses a request of a worker that was inside.
    fn refuse_later(&mut self, worker: &str, token: u64, request: &'static str) -> Answer {
        if self.sent < self.newest_sent {
            self.note(worker, token, What::Late(request));
            return Err(self.newest);
        }
        let asked = self.asked.get(&token).copied();
        self.refuse(worker, token, request, asked)
    }

    fn refuse(
        &mut self,
        worker: &str,
        token: u64,
        request: &'static str,
        asked: Option<u128>,
    ) -> Answer {
        if !self.may_be_late(worker, asked) {
            let newest = self.newest;
            let what = format!("was never stopped, and came to {request} after token {newest}");
            self.violation(worker, token, what);
        }
        self.note(worker, token, What::Refused(request));
        Err(self.newest)
    }

    fn violation(&mut self, worker: &str, token: u64, what: String) {
        let what = format!("{worker} (token {token}) {what}");
        let what = match self.may_overlap() {
            true => What::Excused(what),
            false => What::Violation(what),
        };
        self.note(worker, token, what);
    }

    /// The number of excused violations, while the store may have forgotten or ended leases.
    pub fn excused(&self) -> usize {
        let excused = |event: &&Event| matches!(event.what, What::Excused(_));
        self.events.iter().filter(excused).count()
    }

    fn note(&mut self, worker: &str, token: u64, what: What) {
        let worker = worker.to_owned();
        self.events.push(Event {
            at: self.begun.elapsed(),
            worker,
            token,
            what,
        });
    }

    /// The newest token with which a worker has entered.
    pub fn newest(&self) -> u64 {
        self.newest
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

    fn violations(&self) -> impl Iterator<Item = &str> {
        self.events.iter().filter_map(|event| match &event.what {
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

    /// The most readers that were inside together.
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
            } = event;
            let at = at.as_secs_f64();
            format!("{at:.6} {worker} (token {token}): {what:?}\n")
        };
        self.events.iter().map(line).collect()
    }
}

/// Tests of the judge: it detects everything that a broken lock would do.
#[cfg(test)]
mod tests {
    use super::{Entry, History};

    const WRITES: Entry = Entry {
        reads: false,
        asked: None,
    };
    const READS: Entry = Entry {
        reads: true,
        asked: None,
    };

    fn violation(history: &History) -> &str {
        history.violations().next().unwrap_or("none")
    }

    #[test]
    fn a_lock_that_works_is_acquitted() {
        let mut history = History::default();
        for token in [64, 65, 128] {
            history.enter("a", token, WRITES).expect("a newer token");
            let value = history.read("a", token).expect("its turn");
            history.write("a", token, value + 1).expect("its turn");
            history.leave("a", token).expect("its turn");
        }
        history.check();
        assert_eq!(history.value(), 3);
    }

    #[test]
    fn an_overlap_is_seen() {
        let mut history = History::default();
        history.enter("a", 64, WRITES).expect("a newer token");
        history.enter("b", 128, WRITES).expect("a newer token");
        assert!(violation(&history).contains("came in while a"));
    }

    #[test]
    fn a_body_that_was_dropped_does_not_overlap_unless_it_did_something() {
        for acts in [false, true] {
            let mut history = History::default();
            history.suspended("a");
            history.resumed("a", 0);
            history.enter("a", 64, WRITES).expect("a newer token");
            history.enter("b", 128, WRITES).expect("a newer token");
            if acts {
                history.read("a", 64).expect_err("an older token");
            }
            history.gone(64);
            assert_eq!(violation(&history).contains("came in while a"), acts);
        }
    }

    #[test]
    fn what_was_sent_in_time_is_no_overlap_however_late_it_comes() {
        for (sent, is_seen) in [(2, false), (4, true)] {
            let mut history = History::default();
            history.hears_what_was_sent_at(1);
            history.enter("a", 64, WRITES).expect("a newer token");
            history.hears_what_was_sent_at(3);
            history.enter("b", 128, WRITES).expect("a newer token");
            history.hears_what_was_sent_at(sent);
            history.read("a", 64).expect_err("an older token");
            history.leave("a", 64).expect_err("an older token");
            assert_eq!(violation(&history) != "none", is_seen);
        }
    }

    #[test]
    fn a_stopped_process_does_not_overlap_but_comes_late() {
        let mut history = History::default();
        history.enter("a", 64, WRITES).expect("a newer token");
        history.suspended("a");
        history.enter("b", 128, WRITES).expect("a newer token");
        history.resumed("a", 0);
        history.write("a", 64, 1).expect_err("an older token");
        history.check();
    }

    #[test]
    fn an_overlap_without_tokens_is_seen() {
        let mut history = History::default();
        let number = history.enter("a", 0, WRITES).expect("a number");
        history.leave("a", number).expect("its turn");
        let number = history.enter("a", 0, WRITES).expect("a number");
        assert_eq!((number, violation(&history)), (2, "none"));
        history.enter("b", 0, WRITES).expect("a number");
        assert!(violation(&history).contains("came in while a"));
    }

    #[test]
    fn a_stopped_process_without_tokens_may_come_late() {
        let mut history = History::default();
        let late = history.enter("a", 0, WRITES).expect("a number");
        history.suspended("a");
        let number = history.enter("b", 0, WRITES).expect("a number");
        history.resumed("a", 0);
        history.write("a", late, 1).expect_err("an older number");
        history.enter("a", 0, WRITES).expect_err("b is inside");
        history.leave("b", number).expect("its turn");
        // Without tokens, this cannot be recognized as late.
        history.enter("a", 0, WRITES).expect("a number");
        history.enter("b", 0, WRITES).expect("a number");
        history.check();
    }

    /// For a lock that it asks for after it was resumed, it has no excuse.
    #[test]
    fn a_process_that_was_stopped_is_late_with_what_it_had_asked_for() {
        for (asked, is_seen) in [(4, false), (6, true)] {
            let entry = Entry {
                asked: Some(asked),
                ..WRITES
            };
            for token in [0, 64] {
                let mut history = History::default();
                history.suspended("a");
                history.resumed("a", 5);
                let number = history.enter("a", token, entry).expect("nobody is inside");
                history.enter("b", 2 * token, WRITES).expect("it is seen");
                history.write("a", number, 1).expect_err("b is inside");
                // With tokens, a late body is recognized by its token, so an overlap is not
                // excused.
                assert_eq!(violation(&history) != "none", is_seen || token > 0);

                let mut history = History::default();
                history.suspended("a");
                history
                    .enter("b", 2 * token, WRITES)
                    .expect("nobody is inside");
                history.resumed("a", 5);
                let late = history.enter("a", token, entry);
                assert_eq!(late.is_err(), !is_seen || token > 0);
                assert_eq!(violation(&history) != "none", is_seen);
            }
        }
    }

    #[test]
    fn readers_are_inside_together() {
        let mut history = History::default();
        let one = history.enter("a", 0, READS).expect("a number");
        let other = history.enter("b", 0, READS).expect("a number");
        history.read("a", one).expect("its turn");
        history.leave("a", one).expect("its turn");
        history.read("b", other).expect("its turn");
        history.leave("b", other).expect("its turn");
        let writer = history.enter("c", 0, WRITES).expect("a number");
        history.write("c", writer, 1).expect("its turn");
        history.leave("c", writer).expect("its turn");
        history.enter("a", 0, READS).expect("a number");
        history.check();
        assert_eq!(history.most_readers(), 2);
    }

    #[test]
    fn a_writer_beside_a_reader_is_seen() {
        for (inside, comes) in [(READS, WRITES), (WRITES, READS)] {
            let mut history = History::default();
            history.enter("a", 0, READS).expect("a number");
            history.enter("b", 0, inside).expect("a number");
            history.enter("c", 0, comes).expect("a number");
            assert!(violation(&history).contains("came in while"));
        }
    }

    #[test]
    fn a_stopped_reader_may_come_late() {
        let mut history = History::default();
        let late = history.enter("a", 0, READS).expect("a number");
        let other = history.enter("b", 0, READS).expect("a number");
        history.suspended("a");
        history.leave("b", other).expect("its turn");
        let writer = history.enter("c", 0, WRITES).expect("a number");
        history.resumed("a", 0);
        history.read("a", late).expect_err("an older number");
        history.enter("a", 0, READS).expect_err("c is inside");
        history.leave("c", writer).expect("its turn");
        // Without tokens, this cannot be recognized as late.
        history.enter("a", 0, READS).expect("a number");
        history.enter("c", 0, WRITES).expect("a number");
        history.check();
    }

    #[test]
    fn a_stopped_writer_does_not_write_beside_a_reader() {
        let mut history = History::default();
        let late = history.enter("a", 0, WRITES).expect("a number");
        history.suspended("a");
        let reader = history.enter("b", 0, READS).expect("a number");
        history.resumed("a", 0);
        history.write("a", late, 1).expect_err("an older number");
        history.leave("b", reader).expect("its turn");
        history.check();
    }

    #[test]
    fn a_token_that_does_not_rise_is_seen() {
        for token in [64, 63] {
            let mut history = History::default();
            history.enter("a", 64, WRITES).expect("a newer token");
            history.leave("a", 64).expect("its turn");
            history
                .enter("b", token, WRITES)
                .expect_err("no newer token");
            assert!(violation(&history).contains("never stopped"));
        }
    }

    #[test]
    fn a_store_that_may_have_forgotten_is_excused_until_it_may_not() {
        let mut history = History::default();
        history.enter("a", 640, WRITES).expect("a newer token");
        history.doubts(true);
        history.enter("b", 64, WRITES).expect_err("no newer token");
        assert_eq!((history.excused(), violation(&history)), (1, "none"));
        history.doubts(false);
        history
            .enter("b", 128, WRITES)
            .expect("a newer token than none");
        assert!(violation(&history).contains("came in while a"));
    }

    #[test]
    fn leases_that_may_end_early_excuse_an_overlap_and_no_old_token() {
        let mut history = History::default();
        history.enter("a", 64, WRITES).expect("a newer token");
        history.ends_leases(true);
        history.enter("b", 128, WRITES).expect("a newer token");
        assert_eq!((history.excused(), violation(&history)), (1, "none"));
        history.leave("b", 128).expect("its turn");
        history.ends_leases(false);
        history.enter("c", 128, WRITES).expect_err("no newer token");
        assert!(violation(&history).contains("never stopped"));
    }

    #[test]
    fn a_lost_update_is_seen() {
        let mut history = History::default();
        history.enter("a", 64, WRITES).expect("a newer token");
        history.write("a", 64, 1).expect("its turn");
        history.write("a", 64, 1).expect("its turn");
        assert!(violation(&history).contains("wrote 1 over 1"));
    }
}
