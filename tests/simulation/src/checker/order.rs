//! Who waits is served in order: the tasks of a process in the order in which they
//! came, with a limit of hand-overs; and the processes, where the store is fair.
//!
//! A process has one place in the store's queue for each key and ttl. It has it from
//! when somebody began to wait there, or its last lease went back, and keeps it while
//! anybody waits. Between processes that is held against each other only where
//! nothing was wrong with either: what is late or lost changes the order of asking.

use std::collections::BTreeMap;
use std::time::Duration;

use dlock::backend::Mode;

use crate::history::{Call, History, Key, State, name};
use crate::world::{At, ProcessId};

/// What one grant of the store was used for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Grant {
    /// Since when bodies work under it.
    pub(crate) since: Option<At>,
    /// How many bodies have begun under it.
    pub(crate) bodies: u64,
    /// How many of them have not ended.
    pub(crate) inside: u32,
    /// Until when it is to be kept.
    pub(crate) kept_until: At,
}

/// The tasks of a process that hand a lease of one length to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Line {
    key: Key,
    process: ProcessId,
    short: bool,
    /// Of so many permits.
    permits: Option<u32>,
}

/// How a call has its lock whose body goes on after a loss.
pub(crate) const REGARDLESS: &str = "once, regardless";

/// Whoever has begun to wait has a place after this: some round trips.
const MARGIN: Duration = Duration::from_millis(40);
/// What is wrong with a process may show in its order for so long.
const SHOWS: Duration = Duration::from_secs(5);

/// The first number of the grant that this token is of.
pub(crate) fn grant_of(token: u64) -> u64 {
    token - token % dlock_runtime::TOKENS_PER_GRANT
}

impl Call {
    /// It does not wait.
    pub(super) fn tries(&self) -> bool {
        matches!(self.how, "tries" | "tries a permit" | "tries once")
    }

    /// Its lease is shorter than that of others, and may end under it.
    fn is_short(&self) -> bool {
        matches!(self.how, "fixed" | "limited" | REGARDLESS)
    }

    fn waits(&self) -> bool {
        self.entered.is_none() && self.ended.is_none()
    }

    /// Where it queues in its process for this key.
    fn line(&self, key: Key) -> Option<Line> {
        let queues = self.keys.contains(&key) && !self.tries() && self.mode != Mode::Read;
        queues.then_some(Line {
            key,
            process: self.process,
            short: self.is_short(),
            permits: self.permits(),
        })
    }

    fn permits(&self) -> Option<u32> {
        match self.mode {
            Mode::Permits(most) => Some(most),
            _ => None,
        }
    }
}

impl State {
    /// A call begins.
    pub(crate) fn queues(&mut self, call: usize, now: At) {
        let lines = self.calls[call].keys.iter();
        let lines: Vec<_> = lines
            .filter_map(|key| self.calls[call].line(*key))
            .collect();
        for line in lines {
            let mut others = self.open.iter().filter(|other| **other != call);
            let is_joined = others.any(|other| {
                let other = &self.calls[*other];
                other.waits() && other.line(line.key) == Some(line)
            });
            if !is_joined {
                self.lines.insert(line, now);
            }
        }
    }

    /// A body begins. Whoever joins its line later may have a later place.
    pub(super) fn keeps_its_place(&mut self, call: usize) {
        let Self { calls, lines, .. } = self;
        let call = &mut calls[call];
        let had = call.keys.iter().filter_map(|key| call.line(*key));
        let first = had.filter_map(|line| lines.get(&line).copied()).min();
        call.placed = call.placed.or(first);
    }

    /// A body has ended, and so is its lease, but for what it is to be kept.
    pub(crate) fn is_served(&mut self, call: usize, now: At, kept_until: At) {
        let call = &self.calls[call];
        // A lease that cannot be renewed may have ended before.
        let ends_sooner = call.is_short();
        for &key in &call.keys {
            // Others of those with permits may have a place of before.
            let alone = !ends_sooner && !call.mode.is_shared();
            if let Some(line) = call.line(key).filter(|_| alone) {
                self.lines.insert(line, now);
            }
            let released = self.released.entry((call.process, key)).or_default();
            *released = kept_until.max(*released);
        }
    }

    /// A call leaves without having been served. What was granted to it meanwhile goes
    /// to the next in its process, if it may be handed over at all, and takes the place
    /// along else.
    pub(crate) fn gives_up(&mut self, call: usize, now: At, handoff: u32) {
        let call = &self.calls[call];
        if handoff == 0 || call.keys.len() > 1 || call.permits().is_some() {
            for &key in &call.keys {
                let released = self.released.entry((call.process, key)).or_default();
                *released = now.max(*released);
            }
        }
    }
}

impl History {
    /// A body begins, with this token. Who was to be served before it?
    pub(super) fn is_in_order(&self, call: usize, key: Key, token: u64, mode: Mode) {
        let now = self.world.now();
        let wrong = {
            let mut state = self.state();
            let grant = state.grants.entry((key, grant_of(token))).or_default();
            grant.bodies += 1;
            // Nodes that forget may give a number to a second grant.
            let bodies = if self.store.blocking() > 1 {
                1
            } else {
                grant.bodies
            };
            let handed_over = (token - grant_of(token)).max(bodies - 1);
            let passed = self.store.passed(&name(key), grant_of(token));
            let is_fresh = handed_over == 0 && !passed;
            let too_many = handed_over > u64::from(self.promises.handoff);
            // A number that is given twice counts as one grant.
            match too_many && !self.broke_promise_to(key, token) && !self.forgot_number(key, token)
            {
                true => Some(format!(
                    "key {key}: hand-over {handed_over} in a row, of {} at most",
                    self.promises.handoff
                )),
                false if mode.is_shared() => self
                    .overtaken(&state, call, key, is_fresh, now)
                    .or_else(|| self.was_overtaken(&state, call, key, token, now)),
                false => self.overtaken(&state, call, key, is_fresh, now),
            }
        };
        if let Some(wrong) = wrong {
            self.violation(wrong);
        }
    }

    fn overtaken(
        &self,
        state: &State,
        served: usize,
        key: Key,
        is_fresh: bool,
        now: At,
    ) -> Option<String> {
        let this = &state.calls[served];
        // It has waited for one after the other.
        if this.keys.len() > 1 {
            return None;
        }
        let waiting = state.open.iter().filter(|other| **other != served);
        waiting
            .map(|other| (*other, &state.calls[*other]))
            .filter(|(_, other)| other.waits() && other.keys == [key])
            .find(|(number, other)| match other.process == this.process {
                true => *number < served && self.is_before(state, other, this, key, now),
                false => is_fresh && self.has_an_older_place(state, other, this, key, now),
            })
            .map(|(_, other)| format!("key {key}: {this:?} is served before {other:?}"))
    }

    /// Of two tasks of one process, the first has come before.
    fn is_before(&self, state: &State, first: &Call, other: &Call, key: Key, now: At) -> bool {
        let line = first.line(key);
        // Who asks for permits at once has answers in any order.
        let in_line = line == other.line(key) && line.is_some_and(|line| line.permits.is_none());
        // Who is not polled for long queues again.
        in_line && !state.stood_still_within(first.process, first.began, now)
    }

    /// Of two processes, the first has had its place in the store's queue before the
    /// other can have asked.
    fn has_an_older_place(
        &self,
        state: &State,
        first: &Call,
        other: &Call,
        key: Key,
        now: At,
    ) -> bool {
        // Of two who share it, the first may be told later.
        if first.mode.is_shared() && other.mode.is_shared() {
            return false;
        }
        self.came_before(state, first, other, key, now)
    }

    /// One that shares a lock begins. Was another, who came later, granted it before?
    fn was_overtaken(
        &self,
        state: &State,
        served: usize,
        key: Key,
        token: u64,
        now: At,
    ) -> Option<String> {
        // Who has to ask is granted it when it does.
        if !self.promises.hands_on {
            return None;
        }
        let this = &state.calls[served];
        let by = state.bodies.iter().rev().find(|other| {
            let call = &state.calls[other.call];
            let mut keys = other.keys.iter();
            other.mode.is_shared()
                && keys.any(|&(known, earlier)| {
                    // How often one may be handed over is looked at above.
                    known == key && earlier < token && earlier == grant_of(earlier)
                })
                && self.came_before(state, this, call, key, now)
        })?;
        // Numbers that were forgotten say nothing of the order.
        let exempt = self.broke_promise_to(key, token) || self.forgot_number(key, token);
        (!exempt).then(|| format!("key {key}: {this:?} is granted it by {token} after {by:?}"))
    }

    fn came_before(&self, state: &State, first: &Call, other: &Call, key: Key, now: At) -> bool {
        if !self.promises.fair || first.tries() {
            return false;
        }
        let released = state.released.get(&(first.process, key)).copied();
        // Who is told that it has been done has no place any more.
        let marks = self.store.marks(&name(key));
        let marked = marks.last().map(|mark| mark.over.unwrap_or(mark.set));
        let placed = released.max(marked).unwrap_or_default();
        let from = first.began.max(placed);
        let in_line = || state.lines.get(&other.line(key)?).copied();
        let placed = other.placed.or_else(in_line);
        let since = placed.map_or(other.began, |since| other.began.min(since));
        // In its own process it waits for a body, or for a call that has collected the lock.
        let has = |call: &Call| match call.keys.len() {
            1 => call.entered.is_some() && !call.mode.is_shared(),
            _ => true,
        };
        let ahead = |call: &Call| call.began <= first.began && call.line(key) == first.line(key);
        let waits_inside = || {
            let open = || state.open.iter().map(|number| &state.calls[*number]);
            // Itself is one of them.
            let has_no_lead = |most| open().filter(|call| ahead(call)).count() > most as usize;
            if first.permits().is_some_and(has_no_lead) {
                return true;
            }
            open()
                .any(|call| call.process == first.process && call.keys.contains(&key) && has(call))
        };
        let begun = first.began.min(since);
        let calm = |process| {
            let mut troubles = state.troubles_of(process, begun, now, SHOWS);
            // What is asked over a connection that broke long ago is asked later, too.
            let since = begun.saturating_sub(SHOWS);
            let in_vain = self.store.sent_in_vain_since(process, since);
            troubles.next().is_none() && in_vain.is_empty()
        };
        from + MARGIN < since && !waits_inside() && calm(first.process) && calm(other.process)
    }
}

/// The grants of a run, by their key and first number.
pub(crate) type Grants = BTreeMap<(Key, u64), Grant>;
