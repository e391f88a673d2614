//! What happened at the resource, in order, and whether a lock explains it.

use std::collections::HashSet;

/// One thing that happened, with the worker and its token.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Entered {
        worker: String,
        token: u64,
    },
    Wrote {
        worker: String,
        token: u64,
        value: u64,
    },
    Left {
        worker: String,
        token: u64,
    },
    /// It came with an older token than somebody before it.
    Refused {
        worker: String,
        token: u64,
        request: &'static str,
    },
    Reported {
        worker: String,
        text: String,
    },
    /// Something that no lock allows.
    Violation(String),
}

/// A critical section that was entered and not left.
#[derive(Clone, Debug)]
struct Open {
    worker: String,
    token: u64,
    /// The worker was stopped or killed while it was inside.
    suspended: bool,
}

/// The events, and what is needed to judge the next one.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Vec<Event>,
    value: u64,
    newest: u64,
    open: Vec<Open>,
    /// The workers that are stopped or dead now.
    suspended: HashSet<String>,
    /// Those that ever were: they may come late.
    suspects: HashSet<String>,
}

/// A value, or the newest token that somebody else has shown.
type Answer = Result<u64, u64>;

impl History {
    pub(super) fn suspended(&mut self, worker: &str) {
        self.suspended.insert(worker.to_owned());
        self.suspects.insert(worker.to_owned());
        for open in self.open.iter_mut().filter(|open| open.worker == worker) {
            open.suspended = true;
        }
    }

    pub(super) fn resumed(&mut self, worker: &str) {
        self.suspended.remove(worker);
    }

    pub(super) fn report(&mut self, worker: &str, text: &str) {
        self.events.push(Event::Reported {
            worker: worker.to_owned(),
            text: text.to_owned(),
        });
    }

    /// The number that it is to show from now on: the token, or for a grant
    /// without one (0), the next.
    pub(super) fn enter(&mut self, worker: &str, token: u64) -> Answer {
        let token = match token {
            0 => match self.count_in(worker) {
                Some(number) => number,
                None => return self.refuse(worker, token, "enter"),
            },
            token => token,
        };
        // Each grant has a token of its own, so not even an equal one will do.
        if token <= self.newest {
            return self.refuse(worker, token, "enter");
        }
        let overlaps = self.open.iter().filter(|open| !open.suspended);
        for open in overlaps.cloned().collect::<Vec<_>>() {
            self.violation(format!(
                "{worker} (token {token}) came in while {} (token {}) was inside",
                open.worker, open.token
            ));
        }
        self.open.clear();
        self.newest = token;
        // Bytes that a process sent before it was stopped may arrive after.
        let suspended = self.suspended.contains(worker);
        self.open.push(Open {
            worker: worker.to_owned(),
            token,
            suspended,
        });
        self.events.push(Event::Entered {
            worker: worker.to_owned(),
            token,
        });
        Ok(token)
    }

    /// The number of the next grant, if it has no token. Nothing but the time
    /// tells those who come late then: one that was stopped before and comes
    /// while somebody is inside is refused, and one that is inside is overtaken.
    fn count_in(&mut self, worker: &str) -> Option<u64> {
        let suspects = &self.suspects;
        self.open.retain(|open| !suspects.contains(&open.worker));
        let late = suspects.contains(worker) && !self.open.is_empty();
        (!late).then_some(self.newest + 1)
    }

    pub(super) fn read(&mut self, worker: &str, token: u64) -> Answer {
        if token < self.newest {
            return self.refuse(worker, token, "read");
        }
        Ok(self.value)
    }

    pub(super) fn write(&mut self, worker: &str, token: u64, value: u64) -> Answer {
        if token < self.newest {
            return self.refuse(worker, token, "write");
        }
        if value != self.value + 1 {
            let was = self.value;
            self.violation(format!("{worker} (token {token}) wrote {value} over {was}"));
        }
        self.value = value;
        self.events.push(Event::Wrote {
            worker: worker.to_owned(),
            token,
            value,
        });
        Ok(value)
    }

    pub(super) fn leave(&mut self, worker: &str, token: u64) -> Answer {
        if token < self.newest {
            return self.refuse(worker, token, "leave");
        }
        self.open.retain(|open| open.token != token);
        self.events.push(Event::Left {
            worker: worker.to_owned(),
            token,
        });
        Ok(self.value)
    }

    fn refuse(&mut self, worker: &str, token: u64, request: &'static str) -> Answer {
        let suspect = self.suspects.contains(worker);
        if !suspect {
            let newest = self.newest;
            self.violation(format!(
                "{worker}, which was never stopped, came to {request} with token {token} after \
                 token {newest}"
            ));
        }
        let worker = worker.to_owned();
        self.events.push(Event::Refused {
            worker,
            token,
            request,
        });
        Err(self.newest)
    }

    fn violation(&mut self, what: String) {
        self.events.push(Event::Violation(what));
    }

    /// The counter's value.
    pub fn value(&self) -> u64 {
        self.value
    }

    /// Fails, with all that happened, unless a lock that works explains it: no
    /// overlap, tokens that rise, no lost update, and nobody refused but those
    /// that were stopped.
    pub fn check(&self) {
        let violations: Vec<_> = self.violations().collect();
        assert!(
            violations.is_empty(),
            "{violations:#?}\nin\n{}",
            self.shown()
        );
        let writes = self
            .events
            .iter()
            .filter(|event| matches!(event, Event::Wrote { .. }));
        assert_eq!(
            writes.count() as u64,
            self.value,
            "a write was lost in\n{}",
            self.shown()
        );
    }

    fn violations(&self) -> impl Iterator<Item = &str> {
        self.events.iter().filter_map(|event| match event {
            Event::Violation(what) => Some(what.as_str()),
            _ => None,
        })
    }

    /// How many writes of `worker` were accepted.
    pub fn writes_of(&self, worker: &str) -> usize {
        self.events
            .iter()
            .filter(
                |event| matches!(event, Event::Wrote { worker: writer, .. } if writer == worker),
            )
            .count()
    }

    /// Whether `worker` is inside its critical section.
    pub fn is_inside(&self, worker: &str) -> bool {
        self.open.iter().any(|open| open.worker == worker)
    }

    /// What `worker` has reported.
    pub fn reports_of(&self, worker: &str) -> Vec<&str> {
        self.events
            .iter()
            .filter_map(|event| match event {
                Event::Reported {
                    worker: reporter,
                    text,
                } if reporter == worker => Some(text.as_str()),
                _ => None,
            })
            .collect()
    }

    fn shown(&self) -> String {
        self.events
            .iter()
            .map(|event| format!("{event:?}\n"))
            .collect()
    }
}

/// The judge is judged: it sees each thing that a broken lock would do.
#[cfg(test)]
mod tests {
    use super::History;

    fn violation(history: &History) -> &str {
        history.violations().next().unwrap_or("none")
    }

    #[test]
    fn a_lock_that_works_is_acquitted() {
        let mut history = History::default();
        for token in [64, 65, 128] {
            history.enter("a", token).expect("a newer token");
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
        history.enter("a", 64).expect("a newer token");
        history.enter("b", 128).expect("a newer token");
        assert!(violation(&history).contains("came in while a"));
    }

    #[test]
    fn a_stopped_process_does_not_overlap_but_comes_late() {
        let mut history = History::default();
        history.enter("a", 64).expect("a newer token");
        history.suspended("a");
        history.enter("b", 128).expect("a newer token");
        history.resumed("a");
        history.write("a", 64, 1).expect_err("an older token");
        history.check();
    }

    #[test]
    fn an_overlap_without_tokens_is_seen() {
        let mut history = History::default();
        let number = history.enter("a", 0).expect("a number");
        history.leave("a", number).expect("its turn");
        let number = history.enter("a", 0).expect("a number");
        assert_eq!((number, violation(&history)), (2, "none"));
        history.enter("b", 0).expect("a number");
        assert!(violation(&history).contains("came in while a"));
    }

    #[test]
    fn a_stopped_process_without_tokens_may_come_late() {
        let mut history = History::default();
        let late = history.enter("a", 0).expect("a number");
        history.suspended("a");
        let number = history.enter("b", 0).expect("a number");
        history.resumed("a");
        history.write("a", late, 1).expect_err("an older number");
        history.enter("a", 0).expect_err("b is inside");
        history.leave("b", number).expect("its turn");
        // It cannot be told that this is late.
        history.enter("a", 0).expect("a number");
        history.enter("b", 0).expect("a number");
        history.check();
    }

    #[test]
    fn a_token_that_does_not_rise_is_seen() {
        for token in [64, 63] {
            let mut history = History::default();
            history.enter("a", 64).expect("a newer token");
            history.leave("a", 64).expect("its turn");
            history.enter("b", token).expect_err("no newer token");
            assert!(violation(&history).contains("never stopped"));
        }
    }

    #[test]
    fn a_lost_update_is_seen() {
        let mut history = History::default();
        history.enter("a", 64).expect("a newer token");
        history.write("a", 64, 1).expect("its turn");
        history.write("a", 64, 1).expect("its turn");
        assert!(violation(&history).contains("wrote 1 over 1"));
    }
}
