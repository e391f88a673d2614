//! The events at the resource, in order, and whether a working lock explains them.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

mod permits;
#[cfg(test)]
mod tests;
mod verdict;

/// One event, with the worker and its token.
#[derive(Clone, Debug)]
struct Event {
    at: Duration,
    worker: String,
    token: u64,
    what: What,
    excuse: Option<Excuse>,
}

/// Why a violation may be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Excuse {
    /// The store may have forgotten grants. It counts after all if it turns out that it has not.
    Doubt,
    /// It had.
    Forgot,
    /// Leases ended early.
    Early,
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
    /// It entered while a body with this token was inside, or as many as there are permits. A
    /// working lock does not allow that if that body still does anything afterwards.
    Overtook(Vec<u64>, String),
}

/// How a worker enters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry {
    /// Other readers may be inside too.
    pub(super) reads: bool,
    /// When it asked for its lock, if it reports that. A worker that was stopped may come late
    /// only with a lock that it had asked for before.
    pub(super) asked: Option<u128>,
    /// Its body goes on after a loss. It reports until when it was told that it holds its lock.
    pub(super) goes_on: bool,
    /// So many may be inside at once, all of them with a permit.
    pub(super) permits: Option<usize>,
}

/// A critical section that was entered and not left.
#[derive(Clone, Debug)]
struct Open {
    worker: String,
    token: u64,
    entry: Entry,
    /// The worker was stopped or killed while it was inside, and its lease may have ended by then.
    may_end: Option<Instant>,
}

/// A worker that was stopped or killed.
#[derive(Clone, Copy, Debug)]
struct Stop {
    /// Its leases may end from then on.
    leases_end: Instant,
    /// When it went on, by the clock of the workers.
    until: u128,
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
    stopped: HashMap<String, Stop>,
    /// Each worker's stops that may have outlasted its leases. It may come late.
    suspects: HashMap<String, Vec<Stop>>,
    /// When the bodies with these tokens asked for their lock.
    asked: HashMap<u64, u128>,
    /// The most readers, or bodies with permits, that were inside together.
    most_readers: usize,
    entries: u64,
    /// The tokens of bodies beside which another worker entered.
    overtaken: HashSet<u64>,
    /// The tokens of bodies that ended because another worker entered.
    ended: HashSet<u64>,
    /// The tokens of bodies that go on after a loss. When the request was sent with which
    /// another worker entered beside one of them.
    going_on: HashMap<u64, Option<u128>>,
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
            stopped: HashMap::new(),
            suspects: HashMap::new(),
            asked: HashMap::new(),
            most_readers: 0,
            entries: 0,
            overtaken: HashSet::new(),
            ended: HashSet::new(),
            going_on: HashMap::new(),
            doubt: false,
            early: false,
        }
    }
}

/// A value, or the newest token that somebody else has shown.
type Answer = Result<u64, u64>;

impl History {
    /// The worker does nothing from now on, and its leases last for so long at least.
    pub(super) fn stopped(&mut self, worker: &str, leases_last: Duration) {
        let leases_end = Instant::now() + leases_last;
        let until = u128::MAX;
        let stop = Stop { leases_end, until };
        self.stopped.insert(worker.to_owned(), stop);
        for open in self.open.iter_mut().filter(|open| open.worker == worker) {
            open.may_end.get_or_insert(leases_end);
        }
    }

    pub(super) fn resumed(&mut self, worker: &str, moment: u128) {
        let now = Instant::now();
        let stop = self.stopped.remove(worker);
        let leases_end = stop.map_or(now, |stop| stop.leases_end);
        if now < leases_end {
            let of_it = self.open.iter_mut().filter(|open| open.worker == worker);
            of_it.for_each(|open| open.may_end = open.may_end.filter(|end| *end <= now));
            return;
        }
        let until = moment;
        let stop = Stop { leases_end, until };
        let suspects = self.suspects.entry(worker.to_owned());
        suspects.or_default().push(stop);
    }

    /// Whether a worker may come after its lease has ended.
    fn may_be_late(&self, worker: &str, asked: Option<u128>) -> bool {
        let now = Instant::now();
        let stops = self.suspects.get(worker).into_iter().flatten();
        let mut stops = stops.chain(self.stopped.get(worker));
        stops.any(|stop| stop.leases_end <= now && asked.is_none_or(|asked| asked <= stop.until))
    }

    /// From now on the store may have forgotten what it granted.
    pub(super) fn doubts(&mut self) {
        self.doubt = true;
    }

    /// Ends it: now it is known whether it has.
    pub(super) fn knows(&mut self, forgot: bool) {
        self.doubt = false;
        if forgot {
            // Tokens may start again below the forgotten ones.
            self.newest = 0;
            self.ended.clear();
        }
        let of_doubt = self.events.iter_mut();
        for event in of_doubt.filter(|event| event.excuse == Some(Excuse::Doubt)) {
            event.excuse = forgot.then_some(Excuse::Forgot);
        }
    }

    pub(super) fn ends_leases(&mut self, ends: bool) {
        self.early = ends;
    }

    /// Why bodies may overlap now.
    fn excuse(&self) -> Option<Excuse> {
        let early = self.early.then_some(Excuse::Early);
        early.or(self.doubt.then_some(Excuse::Doubt))
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
        if let Some(permits) = entry.permits {
            return Ok(self.comes_in(worker, token, entry, permits));
        }
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
        let now = Instant::now();
        let overlaps = overlaps.filter(|open| open.may_end.is_none_or(|end| now < end));
        for open in overlaps.cloned().collect::<Vec<_>>() {
            let (other, its) = (open.worker, open.token);
            if open.entry.goes_on {
                // It shows later whether it had lost its lock by then.
                let sent = self.excuse().is_none().then_some(self.sent);
                self.going_on.insert(its, sent);
                continue;
            }
            let what =
                format!("{worker} (token {token}) came in while {other} (token {its}) was inside");
            self.note(worker, token, What::Overtook(vec![its], what));
            self.overtaken.insert(its);
        }
        let ended = self.open.extract_if(.., |open| excludes(open));
        let ended: Vec<_> = ended.map(|open| open.token).collect();
        self.last = self.last.max(token);
        if !entry.reads || ends_others {
            // Readers do not refuse each other: one that comes later may have an older token.
            let last_ended = ended.iter().copied().max().unwrap_or_default();
            let newest = if entry.reads { last_ended } else { token };
            self.newest = self.newest.max(newest);
            self.newest_sent = self.sent;
        }
        self.ended.extend(ended);
        self.asked.extend(entry.asked.map(|asked| (token, asked)));
        if entry.goes_on {
            self.going_on.insert(token, None);
        }
        // A request that was sent before the process was stopped may arrive after that.
        let stop = self.stopped.get(worker);
        self.open.push(Open {
            worker: worker.to_owned(),
            token,
            entry,
            may_end: stop.map(|stop| stop.leases_end),
        });
        if entry.reads {
            self.most_readers = self.most_readers.max(self.open.len());
        }
        self.entries += 1;
        self.note(worker, token, What::Entered);
        Ok(token)
    }

    /// The number of the next grant, if it has no token. Without tokens, only the time reveals
    /// late workers: one that was stopped before and comes while another is inside is refused,
    /// and one that is inside is overtaken.
    fn count_in(&mut self, worker: &str, entry: Entry) -> Option<u64> {
        let mut open = std::mem::take(&mut self.open);
        let excludes = |open: &Open| !(open.entry.reads && entry.reads);
        let is_over =
            |open: &mut Open| excludes(open) && self.may_be_late(&open.worker, open.entry.asked);
        let over: Vec<_> = open.extract_if(.., is_over).collect();
        self.ended.extend(over.iter().map(|open| open.token));
        let late = self.may_be_late(worker, entry.asked) && open.iter().any(excludes);
        self.open = open;
        (!late).then_some(self.last + 1)
    }

    /// Whether the body with this token has been followed by another one.
    fn is_over(&self, token: u64) -> bool {
        token < self.newest || self.ended.contains(&token)
    }

    pub(super) fn read(&mut self, worker: &str, token: u64) -> Answer {
        if self.is_over(token) {
            return self.refuse_later(worker, token, "read");
        }
        Ok(self.value)
    }

    pub(super) fn write(&mut self, worker: &str, token: u64, value: u64) -> Answer {
        if self.is_over(token) {
            return self.refuse_later(worker, token, "write");
        }
        if value != self.value + 1 {
            let what = format!("wrote {value} over {}", self.value);
            self.violation(worker, token, what);
        }
        // While overlaps are allowed, a lost update counts as one more write.
        self.value = if self.excuse().is_some() {
            self.value + 1
        } else {
            value
        };
        self.note(worker, token, What::Wrote(self.value));
        Ok(value)
    }

    pub(super) fn leave(&mut self, worker: &str, token: u64) -> Answer {
        if self.is_over(token) {
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
        let overtook = |what: &What| matches!(what, What::Overtook(its, _) if its.contains(&token));
        self.events.retain(|event| !overtook(&event.what));
    }

    /// A body that goes on after a loss was told at this moment that it holds its lock.
    pub(super) fn held(&mut self, worker: &str, token: u64, moment: u128) {
        let overtaken = self.going_on.get(&token).copied().flatten();
        if overtaken.is_some_and(|sent| sent < moment) {
            let what = "was told that it holds its lock, and another was inside".to_owned();
            self.violation(worker, token, what);
        }
    }

    /// Refuses a request of a worker that was inside.
    fn refuse_later(&mut self, worker: &str, token: u64, request: &'static str) -> Answer {
        if self.sent < self.newest_sent {
            self.note(worker, token, What::Late(request));
            return Err(self.newest);
        }
        if self.going_on.contains_key(&token) {
            self.note(worker, token, What::Refused(request));
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
        self.note(worker, token, What::Violation(what));
    }

    fn note(&mut self, worker: &str, token: u64, what: What) {
        let worker = worker.to_owned();
        let is_wrong = matches!(what, What::Violation(_) | What::Overtook(..));
        self.events.push(Event {
            at: self.begun.elapsed(),
            worker,
            token,
            what,
            excuse: self.excuse().filter(|_| is_wrong),
        });
    }
}
