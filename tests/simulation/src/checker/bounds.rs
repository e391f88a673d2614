//! Every call ends within its bound.

use std::time::Duration;

use crate::history::{Call, History};
use crate::world::At;

/// How long a call may wait for its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    Waits,
    Within(Duration),
    Tries,
}

pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The last look of a caller that stood still, and what one poll leaves to the next.
const GRACE: Duration = Duration::from_millis(1_500);
/// Otherwise, the way there and back.
const MOMENT: Duration = Duration::from_millis(20);
/// Who has had no answer by the end, when an outage is just over, or to whom the store has said that
/// nobody has the lock, waits for one so long at most, and for no more than half of its limit.
const LAST_LOOK: Duration = Duration::from_secs(1);

impl History {
    pub(super) fn ended_in_time(&self, call: &Call, bound: Bound) {
        let ended = self.world.now();
        let waited_until = call.entered.unwrap_or(ended);
        let limit = match bound {
            Bound::Waits => None,
            Bound::Within(limit) => Some(limit),
            // Asked once more where nobody heard the answer.
            Bound::Tries => Some(3 * REQUEST_TIMEOUT),
        };
        if let Some(limit) = limit {
            let stood = self
                .state()
                .stood_still(call.process, call.began, waited_until);
            let waited = waited_until - call.began;
            let troubled = self
                .state()
                .is_troubled(call.process, call.began, waited_until, 1);
            let last_look = match bound {
                Bound::Within(limit) if troubled || self.is_idle(call, call.began + limit) => {
                    LAST_LOOK.min(limit / 2)
                }
                _ => Duration::ZERO,
            };
            if waited > (limit + last_look).mul_f64(1.02) + after(stood) {
                self.violation(format!(
                    "{call:?} waited for {waited:?}, of which it stood still {stood:?}"
                ));
            }
        }
        if let Some(body_ended) = call.body_ended {
            let stood = self.state().stood_still(call.process, body_ended, ended);
            let took = ended - body_ended;
            if took > (REQUEST_TIMEOUT * 2).mul_f64(1.02) + after(stood) {
                self.violation(format!("{call:?} took {took:?} to give its lock back"));
            }
        }
    }
}

impl History {
    /// Whether no body ran under one of its locks at this time.
    fn is_idle(&self, call: &Call, at: At) -> bool {
        let state = self.state();
        call.keys.iter().any(|key| {
            let runs = |other: &Call| {
                other.keys.contains(key)
                    && other.entered.is_some_and(|entered| entered <= at)
                    && other
                        .body_ended
                        .or(other.ended)
                        .is_none_or(|ended| ended > at)
            };
            !state.calls.iter().any(runs)
        })
    }
}

/// What is added to a limit for whoever stood still for so long meanwhile.
fn after(stood: Duration) -> Duration {
    match stood.is_zero() {
        true => MOMENT,
        false => stood + GRACE,
    }
}
