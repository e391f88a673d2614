//! A task's place in the queue of its process, and what it is given there.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use super::entry::Refusal;
use super::leadership::Leadership;
use super::sweep::Tick;
use super::turn::{Successor, Turn};
use crate::observe::{Labels, Unclaimed};

/// What a waiting task is given. Whatever of it is dropped passes itself on.
#[derive(Debug)]
pub(super) enum Delivery {
    Turn(Turn),
    Lead(Leadership),
    Failed(Refusal),
}

/// How a wait in the process ends.
#[derive(Debug)]
pub(super) enum Came {
    For(Delivery),
    /// There is something new to be seen.
    Called,
    /// It was given something and did not come in time.
    TooLate,
}

/// What a waiting task and the gate share. Exactly one of the two takes out
/// what was put in: the task when it is polled, or the gate because it was not.
#[derive(Debug)]
pub(super) struct Ticket {
    /// Needs a lease that was not used before.
    fresh: bool,
    labels: Labels,
    slot: Mutex<Slot>,
}

#[derive(Debug)]
struct Slot {
    stage: Stage,
    task: Option<Waker>,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "every ticket comes to the large one, and has an allocation of its own already"
)]
enum Stage {
    Waits,
    /// It waits, and should look around.
    Called,
    Given {
        delivery: Delivery,
        /// The look that first saw it lie here.
        seen: Option<Tick>,
        /// It counts as held meanwhile.
        _shown: Option<Unclaimed>,
    },
    TakenBack,
    /// The task has what it came for, or has left.
    Gone,
}

/// What the sweep sees of what was given.
pub(super) enum Claim {
    Claimed,
    /// It lies there, seen for the first time.
    Unclaimed,
    Outstanding,
    /// Nobody has come for it for too long.
    Neglected,
}

impl Ticket {
    pub(super) fn new(fresh: bool, labels: Labels) -> Arc<Self> {
        Arc::new(Self {
            fresh,
            labels,
            slot: Mutex::new(Slot {
                stage: Stage::Waits,
                task: None,
            }),
        })
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.slot().stage, Stage::Gone)
    }

    /// Gives the task something. What it cannot take any more is dropped here.
    pub(super) fn deliver(&self, delivery: Delivery) {
        let (task, too_late) = {
            let mut slot = self.slot();
            match slot.stage {
                Stage::Waits | Stage::Called => {
                    slot.stage = Stage::Given {
                        delivery,
                        seen: None,
                        _shown: None,
                    };
                    (slot.task.take(), None)
                }
                Stage::Given { .. } | Stage::TakenBack | Stage::Gone => (None, Some(delivery)),
            }
        };
        drop(too_late);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Has the task look around, if it waits: to be woken.
    #[must_use]
    pub(super) fn call(&self) -> Option<Waker> {
        let mut slot = self.slot();
        if !matches!(slot.stage, Stage::Waits) {
            return None;
        }
        slot.stage = Stage::Called;
        slot.task.take()
    }

    pub(super) fn look(&self, tick: Tick) -> Claim {
        let mut slot = self.slot();
        match &mut slot.stage {
            // It is about to be given.
            Stage::Waits | Stage::Called => Claim::Outstanding,
            // Whoever is told of a failure holds up nobody.
            Stage::Given {
                delivery: Delivery::Failed(_),
                ..
            }
            | Stage::TakenBack
            | Stage::Gone => Claim::Claimed,
            Stage::Given { seen, .. } => match *seen {
                None => {
                    *seen = Some(tick);
                    Claim::Unclaimed
                }
                Some(first) if tick.is_too_long_after(first) => Claim::Neglected,
                Some(_) => Claim::Outstanding,
            },
        }
    }

    /// Counts a lease that lies here as held, until somebody comes for it.
    pub(super) fn show(&self) {
        let shown = Unclaimed::begin(self.labels);
        let mut slot = self.slot();
        // Dropped outside of the lock: a recorder's code is not ours.
        let _too_late = match &mut slot.stage {
            Stage::Given {
                delivery: Delivery::Turn(_),
                _shown,
                ..
            } => _shown.replace(shown),
            _ => Some(shown),
        };
        drop(slot);
    }

    /// Takes back what nobody has come for.
    pub(super) fn take_back(&self) -> Option<Delivery> {
        self.take_out(Stage::TakenBack)
    }

    /// The task has found what it wanted elsewhere. Not if it was given
    /// something meanwhile.
    pub(super) fn leave(&self) -> bool {
        let mut slot = self.slot();
        let waits = matches!(slot.stage, Stage::Waits | Stage::Called);
        if waits {
            slot.stage = Stage::Gone;
        }
        waits
    }

    /// Takes out what crosses with the task's leaving.
    pub(super) fn take(&self) -> Option<Delivery> {
        self.take_out(Stage::Gone)
    }

    /// What has come for the task, or its waker is kept for when it does.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Came> {
        let mut slot = self.slot();
        match &slot.stage {
            Stage::Given { .. } => {
                let given = std::mem::replace(&mut slot.stage, Stage::Gone);
                drop(slot);
                match given {
                    Stage::Given { delivery, .. } => Poll::Ready(Came::For(delivery)),
                    _ => unreachable!("it was given just now"),
                }
            }
            Stage::TakenBack | Stage::Gone => Poll::Ready(Came::TooLate),
            Stage::Called => {
                slot.stage = Stage::Waits;
                Poll::Ready(Came::Called)
            }
            Stage::Waits => {
                match &mut slot.task {
                    Some(known) => known.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    fn take_out(&self, then: Stage) -> Option<Delivery> {
        let mut slot = self.slot();
        if !matches!(slot.stage, Stage::Given { .. }) {
            return None;
        }
        let given = std::mem::replace(&mut slot.stage, then);
        drop(slot);
        match given {
            Stage::Given { delivery, .. } => Some(delivery),
            _ => None,
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        // No code of ours panics while it holds this.
        self.slot
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Successor for Ticket {
    fn takes(&self, turn: Turn) {
        self.deliver(Delivery::Turn(turn));
    }
}
