//! Errors say what was so.

use std::time::Duration;

use dlock::{LockError, LossReason};

use super::bounds::Bound;
use super::order::grant_of;
use crate::faults::{Effect, Fault};
use crate::history::{Call, History};
use crate::world::At;

/// An outage that is shorter says nothing yet.
const OUTAGE: Duration = Duration::from_millis(500);
/// Locks that are waited for are looked at so often at least, with the way there and back.
const LOOKS: Duration = Duration::from_millis(1_100);
/// So long a lease may last that nobody works under any more.
const LASTS: Duration = Duration::from_millis(500);

impl History {
    /// A call has ended.
    pub(crate) fn ends(&self, call: usize, bound: Bound, outcome: &Result<(), LockError>) {
        self.world.log(|| format!("call {call} ends: {outcome:?}"));
        let number = call;
        let call = self.is_over(call);
        self.ended_in_time(&call, bound);
        match outcome {
            Ok(()) => self.may_be_marked(number, &call),
            Err(error) => self.is_so(number, &call, bound, error),
        }
    }

    fn is_so(&self, number: usize, call: &Call, bound: Bound, error: &LockError) {
        let now = self.world.now();
        let wrong = match (error, bound) {
            (LockError::Busy { .. }, Bound::Tries)
            | (LockError::Timeout { .. }, Bound::Within(_)) => {
                let held = || {
                    let since = self.may_take_for_held_since(call);
                    let mut keys = call.keys.iter();
                    // Who asks without knowing its owner is not told of a mark.
                    keys.any(|key| {
                        self.was_held_since(*key, since) || self.was_marked_since(*key, since)
                    })
                };
                if self.is_held_in_process(call) {
                    None
                } else if self.is_outage(call) {
                    Some("the store was out of reach")
                } else if self.was_to_be_told(call) {
                    Some("it had been done")
                } else {
                    (!held()).then_some("nobody held it")
                }
            }
            (LockError::Unavailable { .. }, _) => {
                let blocking = self.store.blocking();
                let time = (call.began, now);
                let troubled = self.has_cause(Effect::Unavailable, call.process, time, blocking);
                (!troubled).then_some("nothing was wrong")
            }
            (LockError::Lost { reason, .. }, _) => match reason {
                LossReason::Overran if call.how == "fixed" => None,
                LossReason::MaxHold if call.how == "limited" => None,
                _ => {
                    let began = self.works_since(number, call);
                    // A lease on a bare majority is lost with one of its nodes.
                    let troubled = self.has_cause(Effect::Lost, call.process, (began, now), 1);
                    (!troubled).then_some("nothing was wrong")
                }
            },
            (LockError::Done { .. }, _) => {
                self.state().counts.told_done += 1;
                (!self.was_done(call)).then_some("nobody has done it")
            }
            _ => Some("no call of this kind ends so"),
        };
        if let Some(wrong) = wrong {
            self.violation(format!("{call:?}: {error:?}, but {wrong}"));
        }
    }

    /// Since when a call works under its leases, of which each may have come to it from another call
    /// of its process: a server may have forgotten it before that.
    pub(super) fn works_since(&self, number: usize, call: &Call) -> At {
        let state = self.state();
        let bodies = state.bodies.iter().rev();
        let locks = bodies.filter(|body| body.call == number).take(1);
        let grants = locks
            .flat_map(|body| &body.keys)
            .filter_map(|&(key, token)| {
                let grant = state.grants.get(&(key, grant_of(token)))?;
                grant.since
            });
        let entered = call.entered.unwrap_or(call.began);
        grants.min().map_or(entered, |since| since.min(entered))
    }

    /// A lock that was held at this time may be taken for held by who waits in the process
    /// of this call: it was not told of the release, and finds out at its next look.
    fn may_take_for_held_since(&self, call: &Call) -> At {
        let asked = call.began.saturating_sub(LOOKS);
        let state = self.state();
        let mut lost = state.troubles.iter().filter(|trouble| {
            trouble.fault == Fault::MessagesLost
                && trouble.process == Some(call.process)
                && trouble.from <= call.began
                && trouble.to >= asked
        });
        // What was said before that was heard.
        lost.next()
            .map_or(call.began, |trouble| asked.max(trouble.from))
    }

    /// Whether somebody of the same process had one of its locks meanwhile, or may
    /// have: one of several that a call waits for, or one that is kept for a while.
    fn is_held_in_process(&self, call: &Call) -> bool {
        let state = self.state();
        let mut others = state.calls.iter().rev().filter(|other| {
            other.process == call.process
                && other.ended.is_none_or(|ended| {
                    state.given_back_by(call.process, ended + LASTS) >= call.began
                })
                && other.keys.iter().any(|key| call.keys.contains(key))
        });
        others.any(|other| other.entered.is_some() || matches!(other.how, "both" | "keeps"))
    }

    /// Whether the store was out of reach for the whole of a call. What was on its way
    /// when that began, or waited for its end, may have come.
    fn is_outage(&self, call: &Call) -> bool {
        let now = self.world.now();
        let blocking = self.store.blocking();
        let cut_off = || {
            let state = self.state();
            state.is_cut_off(call.process, call.began, now, blocking)
        };
        let heard = || self.was_heard_since(call.process, call.began);
        now - call.began >= OUTAGE && cut_off() && !heard()
    }
}
