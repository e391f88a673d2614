//! Every call ends within its bound.

use std::time::Duration;

use crate::history::{Call, History};

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
            if waited > limit.mul_f64(1.02) + stood + GRACE {
                self.violation(format!(
                    "{call:?} waited for {waited:?}, of which it stood still {stood:?}"
                ));
            }
        }
        if let Some(body_ended) = call.body_ended {
            let stood = self.state().stood_still(call.process, body_ended, ended);
            let took = ended - body_ended;
            if took > REQUEST_TIMEOUT * 2 + stood + GRACE {
                self.violation(format!("{call:?} took {took:?} to give its lock back"));
            }
        }
    }
}
