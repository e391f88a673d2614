//! A turn: a task's time with a lease, and what comes after it.

use std::sync::Arc;

use tokio::time::Instant;

use super::name::Name;
use crate::backend::{BackendError, Released};
use crate::lease::{Lease, LeaseGuard, Renewals};
use crate::observe::SectionSpan;
use crate::token::FencingToken;

/// One task's time with a lease. Dropped, the lease goes back to the store; a
/// turn that nobody began goes to the next task first.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Present until the turn ends.
    parts: Option<Parts>,
    begun: bool,
}

#[derive(Debug)]
struct Parts {
    lease: LeaseGuard,
    /// Which hand-over of the lease this is, from 0.
    index: u32,
    /// How many more there may be.
    handovers_left: u32,
    /// The queue behind this turn; a reader has none. Its leadership follows the
    /// lease: it passes on when the lease is lost, or has gone back.
    behind: Option<Behind>,
}

struct Behind {
    queues: Arc<dyn Successors>,
    name: Name,
}

/// Who comes after a turn.
pub(super) trait Successors: Send + Sync {
    /// The next in the queue, if a used lease will do for it. It is out of the
    /// queue then.
    fn successor(&self, name: &Name) -> Option<Arc<dyn Successor>>;

    /// Whether somebody waits in the queue.
    fn is_waited_for(&self, name: &Name) -> bool;
}

/// A task that waits for a turn.
pub(super) trait Successor {
    fn takes(&self, turn: Turn);
}

impl std::fmt::Debug for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.name.fmt(f)
    }
}

impl Turn {
    /// The first with its lease, which the queue's leadership follows.
    pub(super) fn first(
        lease: LeaseGuard,
        handovers_left: u32,
        queues: Arc<dyn Successors>,
        name: Name,
    ) -> Self {
        Self::from_parts(Parts {
            lease,
            index: 0,
            handovers_left,
            behind: Some(Behind { queues, name }),
        })
    }

    pub(super) fn alone(lease: LeaseGuard) -> Self {
        Self::from_parts(Parts {
            lease,
            index: 0,
            handovers_left: 0,
            behind: None,
        })
    }

    fn from_parts(parts: Parts) -> Self {
        Self {
            parts: Some(parts),
            begun: false,
        }
    }

    /// The body begins: from here on, only its normal end lets the lease be
    /// handed over.
    pub(crate) fn begin(&mut self, section: SectionSpan, renewals: Renewals) {
        self.begun = true;
        if let Some(parts) = &self.parts {
            parts.lease.lease().serve(section, renewals);
        }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        self.parts().lease.lease()
    }

    /// The token of this turn: greater than that of every turn before it.
    pub(crate) fn token(&self) -> FencingToken {
        self.parts().token()
    }

    /// Ends the turn after a body that ended normally by handing the lease
    /// over, if there is nothing to wait for.
    pub(crate) fn hand_over(mut self, not_before: Option<Instant>) -> Result<(), Self> {
        let Some(parts) = self.parts.take() else {
            return Ok(());
        };
        let answer = match parts.kept_until(not_before) {
            Some(_) => Err(parts),
            None => parts.hand_over(),
        };
        answer.map_err(|parts| {
            self.parts = Some(parts);
            self
        })
    }

    /// Ends the turn after a body that ended normally: hands the lease over,
    /// or gives it back and waits until the store has answered. If
    /// `not_before` is still ahead, the store is told, and the lease goes back
    /// in the background at that time.
    pub(crate) async fn end(
        mut self,
        not_before: Option<Instant>,
    ) -> Result<Released, BackendError> {
        let Some(parts) = self.parts.take() else {
            return Ok(Released::NotHeld);
        };
        if let Some(instant) = parts.kept_until(not_before) {
            return parts.lease.release_at(instant).await;
        }
        match parts.hand_over() {
            Ok(()) => Ok(Released::Released),
            Err(parts) => {
                let followed = parts.is_followed();
                parts.lease.release(followed).await
            }
        }
    }

    /// From now on the lease is not handed over: some body inside was
    /// cancelled, panicked or lost it.
    pub(crate) fn keep_to_oneself(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.handovers_left = 0;
        }
    }

    /// Ends the turn after a body that was cancelled, panicked or lost the
    /// lease, or a guard that was dropped: never hands it over.
    pub(crate) fn abandon(mut self, not_before: Option<Instant>) {
        let Some(parts) = self.parts.take() else {
            return;
        };
        match parts.kept_until(not_before) {
            Some(instant) => parts.lease.abandon_at(instant),
            None => drop(parts.lease),
        }
    }

    /// The queue behind this turn, if there is one.
    pub(super) fn queue(&self) -> Option<&Name> {
        self.parts().behind.as_ref().map(|behind| &behind.name)
    }

    /// Ends a turn that nobody came for: those behind may not come either.
    pub(super) fn give_back(mut self) {
        let parts = self.parts.take();
        drop(parts.map(|parts| parts.lease));
    }

    fn parts(&self) -> &Parts {
        // Only what ends the turn takes them out.
        self.parts
            .as_ref()
            .unwrap_or_else(|| unreachable!("a turn ends once"))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(parts) = self.parts.take() else {
            return;
        };
        if self.begun {
            drop(parts.lease);
        } else if let Err(parts) = parts.hand_over() {
            drop(parts.lease);
        }
    }
}

impl Parts {
    /// Gives the lease to the next task in this process, if the store's queue
    /// has been kept waiting less than the limit, and time is left on it.
    fn hand_over(self) -> Result<(), Self> {
        let Some(Behind { queues, name }) = &self.behind else {
            return Err(self);
        };
        if self.handovers_left == 0 || !self.has_time_left() {
            return Err(self);
        }
        let Some(successor) = queues.successor(name) else {
            return Err(self);
        };
        // Renewed until the next body begins, however the last one wanted it.
        self.lease.lease().set_renewals(Renewals::Always);
        let next = Self {
            index: self.index + 1,
            handovers_left: self.handovers_left - 1,
            ..self
        };
        let lease = next.lease.lease();
        lease.section().handed_over(lease.key(), next.token());
        successor.takes(Turn::from_parts(next));
        Ok(())
    }

    /// Whether a task of this process will ask for the lock next.
    fn is_followed(&self) -> bool {
        let behind = self.behind.as_ref();
        behind.is_some_and(|Behind { queues, name }| queues.is_waited_for(name))
    }

    fn token(&self) -> FencingToken {
        let grant = self.lease.lease().token();
        grant.handed_over(u64::from(self.index))
    }

    /// A lease that is renewed has two thirds of its ttl ahead at the least;
    /// half of that is left for the next body to start with.
    fn has_time_left(&self) -> bool {
        let lease = self.lease.lease();
        lease.remaining().is_some_and(|left| left > lease.ttl() / 3)
    }

    /// Until when the lock is kept after its body has ended, if that is still
    /// ahead and the lease is not lost.
    fn kept_until(&self, not_before: Option<Instant>) -> Option<Instant> {
        not_before.filter(|&instant| instant > self.lease.now() && self.lease.lease().is_held())
    }
}
