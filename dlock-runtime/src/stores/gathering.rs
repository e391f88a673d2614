//! Requests of different locks that are sent to a store together.
//!
//! A lone request never waits for company. A request waits only while some messages are on their
//! way already, and until there are enough requests.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

/// A request that can be sent together with others.
pub(super) trait Part {
    fn lock(&self) -> &str;

    /// Whether a store that refuses this request refuses `first` too, for the same reason. Only
    /// then are the two sent together.
    fn goes_with(&self, first: &Self) -> bool {
        let _ = first;
        true
    }

    /// Called when the request is about to be sent. `false`: nobody wants it any more, so it is
    /// not sent.
    fn leaves(&self, now: Instant) -> bool;
}

/// The requests that have not been sent yet, in the order in which they came.
pub(super) struct Gathering<P> {
    waiting: VecDeque<P>,
    /// The locks of the requests that wait. No two of them wait for the same lock.
    locks: HashSet<String>,
    on_the_way: usize,
    /// While this many messages are on their way, further requests wait.
    at_once: usize,
    /// The most requests that go together.
    pub(super) largest: usize,
}

/// What happens to a new request.
pub(super) enum Entered<P> {
    /// It is sent now. When its message has come back, those that wait may be sent.
    Goes(P),
    /// It is sent now, by itself, because another request of its lock waits. Its message does not
    /// count.
    Alone(P),
    Waits,
    /// Enough requests wait: these are sent now, as one message, which counts like that of a
    /// request that [goes](Entered::Goes).
    Full(Vec<P>),
}

impl<P: Part> Gathering<P> {
    pub(super) fn new(at_once: usize, largest: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            locks: HashSet::new(),
            on_the_way: 0,
            at_once,
            largest,
        }
    }

    pub(super) fn enter(&mut self, part: P, now: Instant) -> Entered<P> {
        if self.on_the_way < self.at_once {
            self.on_the_way += 1;
            part.leaves(now);
            return Entered::Goes(part);
        }
        if !self.locks.insert(part.lock().to_owned()) {
            part.leaves(now);
            return Entered::Alone(part);
        }
        self.waiting.push_back(part);
        // Requests that are enough for one message do not wait until a slow disk has answered
        // another.
        if !self.is_full() {
            return Entered::Waits;
        }
        let batch = self.next(now);
        self.on_the_way += usize::from(!batch.is_empty());
        Entered::Full(batch)
    }

    /// A message has come back. Returns the requests that are sent in its place, if there are any.
    pub(super) fn came_back(&mut self, now: Instant) -> Vec<P> {
        let batch = if self.on_the_way <= self.at_once || self.is_full() {
            self.next(now)
        } else {
            Vec::new()
        };
        self.on_the_way -= usize::from(batch.is_empty());
        batch
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= self.largest
    }

    /// Takes out the first request that waits, with those that may go with it.
    fn next(&mut self, now: Instant) -> Vec<P> {
        let (mut batch, mut later) = (Vec::<P>::new(), VecDeque::new());
        while batch.len() < self.largest
            && let Some(one) = self.waiting.pop_front()
        {
            if !batch.first().is_none_or(|first| one.goes_with(first)) {
                later.push_back(one);
                continue;
            }
            self.locks.remove(one.lock());
            if one.leaves(now) {
                batch.push(one);
            }
        }
        later.append(&mut self.waiting);
        self.waiting = later;
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[derive(Debug)]
    struct Request {
        lock: &'static str,
        kind: u8,
        is_wanted: bool,
        sent: Cell<bool>,
    }

    impl Part for Request {
        fn lock(&self) -> &str {
            self.lock
        }

        fn goes_with(&self, first: &Self) -> bool {
            self.kind == first.kind
        }

        fn leaves(&self, _: Instant) -> bool {
            self.sent.set(self.is_wanted);
            self.is_wanted
        }
    }

    /// Enters a request. Returns what happens to it, or the locks of the requests that are sent.
    fn enter(queue: &mut Gathering<Request>, lock: &'static str, kind: u8) -> String {
        let (is_wanted, sent) = (kind != b'-', Cell::new(false));
        let request = Request {
            lock,
            kind,
            is_wanted,
            sent,
        };
        match queue.enter(request, Instant::now()) {
            Entered::Goes(one) => {
                assert!(one.sent.get(), "it is told");
                "goes".into()
            }
            Entered::Alone(one) => {
                assert!(one.sent.get(), "it is told");
                "alone".into()
            }
            Entered::Waits => "waits".into(),
            Entered::Full(batch) => shown(&batch),
        }
    }

    fn shown(batch: &[Request]) -> String {
        assert!(batch.iter().all(|one| one.sent.get()), "each is told");
        batch.iter().map(|one| one.lock).collect()
    }

    fn back(queue: &mut Gathering<Request>) -> String {
        shown(&queue.came_back(Instant::now()))
    }

    #[test]
    fn who_comes_while_messages_are_on_their_way_waits_for_one_to_come_back() {
        let mut queue = Gathering::new(2, 64);
        let entered = ["a", "b", "c", "d"].map(|lock| enter(&mut queue, lock, 0));
        assert_eq!(entered, ["goes", "goes", "waits", "waits"]);
        assert_eq!([back(&mut queue), back(&mut queue)], ["cd", ""]);
        assert_eq!(enter(&mut queue, "e", 0), "goes");
        assert_eq!(enter(&mut queue, "f", 0), "waits");
    }

    #[test]
    fn two_of_one_lock_do_not_wait_together() {
        let mut queue = Gathering::new(1, 64);
        let entered = ["a", "b", "b", "a"].map(|lock| enter(&mut queue, lock, 0));
        assert_eq!(entered, ["goes", "waits", "alone", "waits"]);
        assert_eq!(back(&mut queue), "ba");
        assert_eq!(enter(&mut queue, "b", 0), "waits");
    }

    #[test]
    fn what_would_fail_with_another_goes_with_it() {
        let mut queue = Gathering::new(1, 64);
        for (lock, kind) in [("x", 0), ("a", 1), ("b", 2), ("c", 3), ("d", 1)] {
            enter(&mut queue, lock, kind);
        }
        let sent = [(); 4].map(|()| back(&mut queue));
        assert_eq!(sent, ["ad", "b", "c", ""]);
    }

    #[test]
    fn what_nobody_wants_any_more_is_not_sent() {
        let mut queue = Gathering::new(1, 64);
        for (lock, kind) in [("x", 0), ("a", b'-'), ("b", 0)] {
            enter(&mut queue, lock, kind);
        }
        assert_eq!([back(&mut queue), back(&mut queue)], ["b", ""]);
        assert_eq!(enter(&mut queue, "y", 0), "goes");
    }

    /// How much it takes may turn out while requests wait.
    #[test]
    fn a_message_is_no_larger_than_the_store_takes() {
        let mut queue = Gathering::new(1, 64);
        for lock in ["x", "a", "b", "c", "d", "e"] {
            enter(&mut queue, lock, 0);
        }
        queue.largest = 3;
        assert_eq!([back(&mut queue), back(&mut queue)], ["abc", "de"]);
    }

    /// They are sent, however slow the messages are that are on their way.
    #[test]
    fn those_who_are_enough_do_not_wait() {
        let mut queue = Gathering::new(1, 3);
        let entered = ["x", "a", "b", "c", "d"].map(|lock| enter(&mut queue, lock, 0));
        assert_eq!(entered, ["goes", "waits", "waits", "abc", "waits"]);
        // One message more than usual is on its way, so nothing is sent in place of the first.
        assert_eq!([back(&mut queue), back(&mut queue)], ["", "d"]);
    }
}
