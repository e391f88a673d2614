//! The annotated functions.

use std::time::Duration;

use dlock::backend::Mode;
use dlock::distributed_lock;

use super::{Body, NotDone};
use crate::checker::bounds::Bound;
use crate::checker::order::REGARDLESS;
use crate::history::Key;
use crate::stores::Abilities;

/// A way to call for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    Permits,
    TriesPermits,
    PermitsWithin,
    Once,
    OnceTries,
    /// By a guard, which says whether it is marked.
    OnceGuarded,
    /// Goes on after a loss, with a lease that is not renewed.
    OnceRegardless,
}

/// The odds of each.
const ALL: [(How, u32); 16] = [
    (How::Waits, 8),
    (How::Tries, 4),
    (How::Within, 5),
    (How::Fixed, 2),
    (How::Limited, 1),
    (How::Reads, 3),
    (How::Both, 2),
    (How::Again, 2),
    (How::Keeps, 1),
    (How::Permits, 4),
    (How::TriesPermits, 1),
    (How::PermitsWithin, 1),
    (How::Once, 2),
    (How::OnceTries, 1),
    (How::OnceGuarded, 2),
    (How::OnceRegardless, 1),
];

impl How {
    pub(super) fn draw(chance: &mut fastrand::Rng, can: Abilities) -> Self {
        let all = || {
            ALL.iter().filter(|(how, _)| match how {
                Self::Reads => can.readers,
                how if how.is_permit() => can.permits,
                how if how.is_once() => can.once,
                _ => true,
            })
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
            Self::Permits => "has a permit",
            Self::TriesPermits => "tries a permit",
            Self::PermitsWithin => "has a permit within",
            Self::Once => "once",
            Self::OnceTries => "tries once",
            Self::OnceGuarded => "once, guarded",
            Self::OnceRegardless => REGARDLESS,
        }
    }

    fn is_permit(self) -> bool {
        matches!(
            self,
            Self::Permits | Self::TriesPermits | Self::PermitsWithin
        )
    }

    pub(super) fn is_once(self) -> bool {
        matches!(
            self,
            Self::Once | Self::OnceTries | Self::OnceGuarded | Self::OnceRegardless
        )
    }

    /// Where permits are asked for, one of so many.
    pub(super) fn mode(self, permits: u32) -> Mode {
        match self {
            Self::Reads => Mode::Read,
            how if how.is_permit() => Mode::Permits(permits),
            _ => Mode::Write,
        }
    }

    pub(super) fn bound(self) -> Bound {
        match self {
            Self::Tries | Self::TriesPermits | Self::OnceTries => Bound::Tries,
            Self::Within | Self::PermitsWithin => Bound::Within(Duration::from_secs(1)),
            Self::Fixed => Bound::Within(Duration::from_secs(4)),
            _ => Bound::Waits,
        }
    }

    /// Calls for the lock of `key`, and for that of `other` where both are wanted.
    pub(super) async fn call(self, key: Key, other: Key, body: Body) -> Result<(), NotDone> {
        let most = match body.mode {
            Mode::Permits(most) => most,
            _ => 1,
        };
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
            Self::Permits => has_permit(key, most, body).await,
            Self::TriesPermits => tries_permit(key, most, body).await,
            Self::PermitsWithin => has_permit_within(key, most, body).await,
            Self::Once => once(key, body).await,
            Self::OnceTries => tries_once(key, body).await,
            Self::OnceGuarded => once_guarded(key, body).await,
            Self::OnceRegardless => once_regardless(key, body).await,
        }
    }
}

#[distributed_lock(key = "stock:<key>", wait)]
async fn waits(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", try)]
async fn tries(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", timeout = "1s")]
async fn within(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", ttl = "1s", timeout = "4s", renew = false)]
async fn fixed(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", ttl = "1s", wait, max_hold = "1500ms")]
async fn limited(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", wait, mode = "read")]
async fn reads(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = ["stock:<key>", "stock:<other>"], wait)]
async fn both(key: Key, other: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

/// Enters once more from the inside.
#[distributed_lock(key = "stock:<key>", wait)]
async fn again(key: Key, body: Body) -> Result<(), NotDone> {
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
async fn keeps(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", permits = most, wait)]
async fn has_permit(key: Key, most: u32, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", permits = most, try)]
async fn tries_permit(key: Key, most: u32, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", permits = most, timeout = "1s")]
async fn has_permit_within(key: Key, most: u32, body: Body) -> Result<(), NotDone> {
    body.run().await
}

/// How long those are remembered of which that stands in the code.
pub(super) const ONCE: Duration = Duration::from_millis(200);

#[distributed_lock(key = "stock:<key>", once = "200ms", wait)]
async fn once(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

#[distributed_lock(key = "stock:<key>", once = "200ms", try)]
async fn tries_once(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

/// What it returns after a loss is not marked.
#[distributed_lock(
    key = "stock:<key>",
    once = "200ms",
    ttl = "1s",
    renew = false,
    wait,
    on_lost = "continue"
)]
async fn once_regardless(key: Key, body: Body) -> Result<(), NotDone> {
    body.run().await
}

async fn once_guarded(key: Key, body: Body) -> Result<(), NotDone> {
    let time = body.once.unwrap_or(ONCE);
    let request = dlock::lock(crate::history::name(key)).once(time);
    let guard = request.acquire().await?;
    let (history, call) = (body.history.clone(), body.call);
    body.run_beside(&guard).await?;
    guard.release_done().await?;
    history.is_marked(call);
    Ok(())
}
