//! The annotated functions.

use std::time::Duration;

use dlock::{LockError, distributed_lock};

use super::Body;
use crate::checker::bounds::Bound;
use crate::history::Key;

/// A way to call for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Waits,
    Tries,
    Within,
    Fixed,
    Limited,
    Reads,
    Both,
    Again,
    Keeps,
}

/// The odds of each.
const ALL: [(How, u32); 9] = [
    (How::Waits, 8),
    (How::Tries, 4),
    (How::Within, 5),
    (How::Fixed, 2),
    (How::Limited, 1),
    (How::Reads, 3),
    (How::Both, 2),
    (How::Again, 2),
    (How::Keeps, 1),
];

impl How {
    pub(super) fn draw(chance: &mut fastrand::Rng, reads: bool) -> Self {
        let all = || {
            ALL.iter()
                .filter(|(how, _)| reads || !matches!(how, Self::Reads))
        };
        let total: u32 = all().map(|(_, odds)| odds).sum();
        let mut left = chance.u32(..total);
        for &(how, odds) in all() {
            if left < odds {
                return how;
            }
            left -= odds;
        }
        Self::Waits
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Tries => "tries",
            Self::Within => "within",
            Self::Fixed => "fixed",
            Self::Limited => "limited",
            Self::Reads => "reads",
            Self::Both => "both",
            Self::Again => "again",
            Self::Keeps => "keeps",
        }
    }

    pub(super) fn bound(self) -> Bound {
        match self {
            Self::Tries => Bound::Tries,
            Self::Within => Bound::Within(Duration::from_secs(1)),
            Self::Fixed => Bound::Within(Duration::from_secs(4)),
            _ => Bound::Waits,
        }
    }

    /// Calls for the lock of `key`, and for that of `other` where both are wanted.
    pub(super) async fn call(self, key: Key, other: Key, body: Body) -> Result<(), LockError> {
        match self {
            Self::Waits => waits(key, body).await,
            Self::Tries => tries(key, body).await,
            Self::Within => within(key, body).await,
            Self::Fixed => fixed(key, body).await,
            Self::Limited => limited(key, body).await,
            Self::Reads => reads(key, body).await,
            Self::Both => both(key, other, body).await,
            Self::Again => again(key, body).await,
            Self::Keeps => keeps(key, body).await,
        }
    }
}

#[distributed_lock(key = "stock:<key>", wait)]
async fn waits(key: Key, body: Body) -> Result<(), LockError> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", try)]
async fn tries(key: Key, body: Body) -> Result<(), LockError> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", timeout = "1s")]
async fn within(key: Key, body: Body) -> Result<(), LockError> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", ttl = "1s", timeout = "4s", renew = false)]
async fn fixed(key: Key, body: Body) -> Result<(), LockError> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", ttl = "1s", wait, max_hold = "1500ms")]
async fn limited(key: Key, body: Body) -> Result<(), LockError> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", wait, mode = "read")]
async fn reads(key: Key, body: Body) -> Result<(), LockError> {
    body.run().await
}

#[distributed_lock(key = ["stock:<key>", "stock:<other>"], wait)]
async fn both(key: Key, other: Key, body: Body) -> Result<(), LockError> {
    body.run().await
}

/// Enters once more from the inside.
#[distributed_lock(key = "stock:<key>", wait)]
async fn again(key: Key, body: Body) -> Result<(), LockError> {
    let (history, call) = (body.history.clone(), body.call);
    let outer = dlock::current().map(|held| held.token());
    let inside = async move {
        let inner = dlock::current().map(|held| held.token());
        if inner != outer {
            history.violation(format!(
                "call {call} re-entered with {inner:?} in place of {outer:?}"
            ));
        }
        history.state().counts.reentered += 1;
        body.run().await
    };
    // What is held already is had at once.
    dlock::lock(crate::history::name(key))
        .patience(dlock::Patience::Try)
        .run(inside)
        .await?
}

#[distributed_lock(key = "stock:<key>", wait, min_hold = "300ms")]
async fn keeps(key: Key, body: Body) -> Result<(), LockError> {
    body.run().await
}
