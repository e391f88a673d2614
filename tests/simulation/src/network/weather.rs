//! What is wrong on the way between one process and one server.

use std::time::Duration;

use super::{SOONEST, USUAL};
use crate::world::{At, World};

/// Faults of one way, each until its time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weather {
    /// Nothing arrives at the server.
    pub(crate) silent_there: At,
    /// Nothing comes back.
    pub(crate) silent_back: At,
    /// All takes longer, up to this.
    pub(crate) slow: (At, Duration),
    /// Connections break behind what was run, before its answer.
    pub(crate) loses_answers: At,
    /// Connections break under what was sent, which may arrive all the same.
    pub(crate) loses_requests: At,
    /// What is sent is run twice.
    pub(crate) doubles: At,
    /// What the server says by itself is lost.
    pub(crate) loses_messages: At,
}

/// A fault that is about single messages meets so many in a thousand.
pub(super) const OFTEN: u32 = 350;

impl Weather {
    /// How long a message is on its way.
    pub(super) fn delay(&self, world: &World) -> Duration {
        let usual = world.between(SOONEST, USUAL);
        let (until, most) = self.slow;
        match world.now() < until {
            true => usual + world.between(Duration::ZERO, most),
            false => usual,
        }
    }

    pub(super) fn meets(until: At, world: &World) -> bool {
        world.now() < until && world.happens(OFTEN)
    }
}
