//! What was done stays done.
//!
//! A body that was to run once has returned `Ok`. Once somebody was told so, or its server
//! has it marked, no other body of that key begins until the mark is over, by its
//! server's clock, or forgotten. Where the answer is unknown, it may be so or not.
//! Nothing else is marked: no body that failed, panicked, died, or lost its lease. And what
//! was done while the lease was held does not go back without its mark.

use std::time::Duration;

use dlock::LockError;
use dlock::backend::Owner;

use super::order::grant_of;
use crate::faults::Effect;
use crate::history::{Call, History, Key, name};
use crate::network::Marked;
use crate::world::{At, ProcessId};

/// A body that was to run once has returned `Ok`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    call: usize,
    process: ProcessId,
    key: Key,
    /// The first number of its grant, and its owner.
    grant: u64,
    owner: Option<Owner>,
    at: At,
    remembered: Duration,
    /// Its lease was good then.
    held: bool,
    /// Its server ends leases by itself, and so nobody has to.
    expires: bool,
    /// Somebody was told that it is marked, or nothing was wrong.
    told: bool,
}

/// Until who asks who holds a lock hears of another.
const LOOKS: Duration = Duration::from_millis(1_100);

impl History {
    /// A body is about to return `Ok`.
    pub(crate) fn returns_ok(&self, body: usize, remembered: Duration, held: bool) {
        let at = self.world.now();
        self.world
            .log(|| format!("body {body} is done for {remembered:?}, held: {held}"));
        let mut state = self.state();
        let call = state.bodies[body].call;
        let process = state.calls[call].process;
        state.counts.once += 1;
        for (key, token) in state.bodies[body].keys.clone() {
            let grant = grant_of(token);
            let holders = self.store.holders(&name(key)).unwrap_or_default();
            let mut holders = holders.iter().filter(|holder| holder.token == grant);
            state.done.push(Done {
                call,
                process,
                key,
                grant,
                owner: self
                    .store
                    .granted(&name(key), grant)
                    .map(|(_, owner)| owner),
                at,
                remembered,
                held,
                expires: holders.any(|holder| holder.lasts.is_some()),
                told: false,
            });
        }
    }

    /// The release of this call has said that its mark is there.
    pub(crate) fn is_marked(&self, call: usize) {
        let mut state = self.state();
        let mut done = state.done.iter_mut();
        let done = done.find(|done| done.call == call).map(|done| {
            done.told = true;
            *done
        });
        drop(state);
        if let Some(done) = done
            && !self.broke_promise_to(done.key, done.grant)
        {
            let marked = self.mark_of(&done);
            if marked.is_none_or(|mark| mark.lasts < done.remembered) {
                self.violation(format!("{done:?} was told to be marked, and is {marked:?}"));
            }
        }
    }

    /// A call has ended well. If nothing was wrong, what was done is marked.
    pub(super) fn may_be_marked(&self, number: usize, call: &Call) {
        let calm = {
            let state = self.state();
            let is_new = |done: &&_| matches!(done, Done { call, told: false, held: true, .. } if *call == number);
            state.done.iter().any(|done| is_new(&done))
                && !state.is_troubled(call.process, call.began, self.world.now(), 1)
        };
        if calm {
            self.is_marked(number);
        }
    }

    /// A body begins. Has it been done?
    pub(super) fn runs_once_more(&self, call: usize, key: Key, token: u64) {
        let grant = grant_of(token);
        let done: Vec<_> = {
            let state = self.state();
            let before = state.done.iter().filter(|done| {
                done.key == key && done.call != call && done.grant <= grant && done.held
            });
            before.copied().collect()
        };
        let granted = self.store.granted(&name(key), grant).map(|(at, _)| at);
        let again = done.into_iter().find(|done| {
            let marked = self.mark_of(done);
            let lasts = |mark: &Marked| mark.over.is_none_or(|over| granted < Some(over));
            let remembered = match marked {
                Some(mark) => lasts(&mark),
                None => done.told,
            };
            let exempt = || self.forgot_number(key, token) || self.is_broken(done);
            (remembered || done.grant == grant) && !exempt()
        });
        if let Some(done) = again {
            let marked = self.mark_of(&done);
            self.violation(format!(
                "key {key}: call {call} runs by {token}, though {done:?}, {marked:?}"
            ));
        }
    }

    /// Whether somebody may have been told by this call's time that it had been done.
    pub(super) fn was_done(&self, call: &Call) -> bool {
        let lasted = |key: Key, mark: &Marked| {
            mark.over.is_none_or(|over| over >= call.began)
                // It may have been brought back.
                || self.broke_promise_to(key, mark.token)
        };
        let mut keys = call.keys.iter();
        keys.any(|&key| {
            let marks = self.store.marks(&name(key)).into_iter();
            let mut marks = marks.filter(|mark| lasted(key, mark));
            marks.any(|mark| self.is_of_who_did_it(key, &mark))
        })
    }

    /// Whether it was remembered for all of the time of a call, and before, that nothing
    /// was wrong in.
    pub(super) fn was_to_be_told(&self, call: &Call) -> bool {
        let now = self.world.now();
        let lasted = |key: Key, mark: &Marked| {
            mark.set + LOOKS < call.began
                && mark.over.is_none()
                && !self.broke_promise_to(key, mark.token)
        };
        let mut keys = call.keys.iter();
        keys.any(|&key| {
            let marks = self.store.marks(&name(key));
            marks.iter().any(|mark| lasted(key, mark))
        }) && !self.state().is_troubled(call.process, call.began, now, 1)
    }

    pub(super) fn was_marked_since(&self, key: Key, since: At) -> bool {
        let marks = self.store.marks(&name(key));
        let lasted = |mark: &Marked| mark.over.is_none_or(|over| over >= since);
        marks.iter().any(lasted)
    }

    /// Somebody was told that nothing is remembered of this key from now on.
    pub(crate) fn forgets(
        &self,
        process: ProcessId,
        key: Key,
        began: At,
        answer: &Result<bool, LockError>,
    ) {
        let now = self.world.now();
        self.world
            .log(|| format!("{process:?} has key {key} forgotten: {answer:?}"));
        let wrong = match answer {
            Ok(had) => {
                self.state().counts.forgotten += u64::from(*had);
                let mut marks = self.store.marks(&name(key)).into_iter();
                let mut stays = marks.find(|mark| {
                    // What servers that have lost it remember is another's.
                    mark.set < began
                        && mark.over.is_none()
                        && !self.broke_promise_to(key, mark.token)
                });
                stays.take().map(|mark| format!("{mark:?} is there"))
            }
            Err(LockError::Unavailable { .. }) => {
                let blocking = self.store.blocking();
                let time = (began, now);
                let troubled = self.has_cause(Effect::Unavailable, process, time, blocking);
                (!troubled).then(|| "nothing was wrong".to_owned())
            }
            Err(_) => Some("it cannot end so".to_owned()),
        };
        if let Some(wrong) = wrong {
            self.violation(format!(
                "{process:?} had key {key} forgotten: {answer:?}, but {wrong}"
            ));
        }
    }

    /// When all has ended: each mark is one of a body that was done, and each such body
    /// that had its lock has not given it back without a mark.
    pub(super) fn marks_are_right(&self) {
        for key in 0..self.promises.keys {
            for mark in self.store.marks(&name(key)) {
                self.state().counts.marks += 1;
                let found = self.is_of_who_did_it(key, &mark);
                if !found && !self.broke_promise_to(key, mark.token) {
                    self.violation(format!("key {key}: {mark:?} is of no body that was done"));
                }
            }
        }
        let done = self.state().done.clone();
        for done in done.into_iter().filter(|done| done.held) {
            let Some(back) = self.store.given_back(&name(done.key), done.grant) else {
                continue;
            };
            // Where nothing else ends a lease, its process does, when its time has passed.
            let late = !done.expires && {
                let state = self.state();
                state.is_troubled(done.process, done.at, back, 1)
            };
            if back >= done.at && !late && !self.is_broken(&done) {
                self.violation(format!("{done:?} went back without a mark at {back:?}"));
            }
        }
    }

    /// By the number of a body that had done it, or by another of its owner's. A request
    /// that was late may have been granted once more, when a mark was over whose answer was
    /// lost, and the release be repeated then; so may one that a server has forgotten.
    fn is_of_who_did_it(&self, key: Key, mark: &Marked) -> bool {
        let state = self.state();
        let mut done = state.done.iter();
        done.any(|done| {
            (done.key == key && done.at <= mark.set && done.held)
                && (done.grant == mark.token || done.owner == mark.owner || self.is_broken(done))
        })
    }

    fn mark_of(&self, done: &Done) -> Option<Marked> {
        let marks = self.store.marks(&name(done.key)).into_iter();
        let mut marks = marks.filter(|mark| mark.token == done.grant && mark.set >= done.at);
        marks.next()
    }

    fn is_broken(&self, done: &Done) -> bool {
        self.forgot_number(done.key, done.grant) || self.broke_promise_to(done.key, done.grant)
    }
}
