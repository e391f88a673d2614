//! A task's stay at the gate, and what it is given there.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use super::attention::Attention;
use super::lead::Lead;
use super::shared_lease::SharedLease;
use super::sweep::{Sweep, Tick};
use crate::backend::Mode;
use crate::lease::NotHad;
use crate::observe::{Counted, Labels, SectionSpan};
use crate::sync::Mutex;

/// How a task comes to the gate.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    /// Does not wait, neither here nor in the store.
    pub(crate) try_only: bool,
    /// Needs a lease that comes from the store, not one that was used before:
    /// it will not be renewed.
    pub(crate) fresh: bool,
    /// What it is asked for.
    pub(crate) section: &'a SectionSpan,
}

/// What a task and the gate share. Exactly one of the two takes out what was put
/// in: the task when it is polled or dropped, or the gate because it was not. It is
/// what the store wakes, and so knows whether the task comes.
#[derive(Debug)]
pub(super) struct Ticket {
    /// Its number in the queue; 0 if it never waits there.
    pub(super) number: u64,
    /// Needs a lease that was not used before.
    pub(super) fresh: bool,
    labels: Labels,
    attention: Attention,
    slot: Mutex<Slot>,
}

#[derive(Debug)]
struct Slot {
    stage: Stage,
    /// What lies here counts as held, as the task does not come.
    shown: Option<Counted>,
}

/// How far a task has come.
#[derive(Debug)]
pub(super) enum Stage {
    Waits,
    /// It waits, and should look around.
    Called,
    Lease(SharedLease),
    Lead(Lead),
    Failed(NotHad),
    /// The task has what it came for, or has left, or what it had was taken back.
    Gone,
}

/// What the sweep sees of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It waits, as far as is known, or is polled right now.
    Waits,
    /// It comes whenever it is woken: it asks the store, or has this and waits for
    /// other keys.
    Comes { lease: bool },
    /// It has something, and has not come for it since this look.
    Neglects { lease: bool, since: Tick },
    /// It holds up nobody.
    Gone,
}

impl Ticket {
    pub(super) fn new(
        sweep: &Arc<Sweep>,
        entry: &Entry<'_>,
        number: u64,
        stage: Stage,
    ) -> Arc<Self> {
        Arc::new(Self {
            number,
            fresh: entry.fresh,
            labels: entry.section.labels(),
            attention: Attention::new(sweep),
            slot: Mutex::new(Slot { stage, shown: None }),
        })
    }

    /// Gives the task something, or back what it does not wait for any more.
    pub(super) fn give(&self, given: Stage) -> Result<(), Stage> {
        {
            let mut slot = self.slot.lock();
            if !matches!(slot.stage, Stage::Waits | Stage::Called) {
                return Err(given);
            }
            slot.stage = given;
        }
        self.attention.wake();
        Ok(())
    }

    /// The task leads, and goes on by the request that it has made.
    pub(super) fn asks(&self, lead: Lead) {
        self.slot.lock().stage = Stage::Lead(lead);
    }

    /// Takes out all there is: the task leaves.
    pub(super) fn leave(&self) -> Stage {
        let (stage, _shown) = {
            let mut slot = self.slot.lock();
            let stage = std::mem::replace(&mut slot.stage, Stage::Gone);
            (stage, slot.shown.take())
        };
        stage
    }

    /// What has come for the task, or its waker is kept for when it does. A lead comes
    /// with the store's answer, or is there to ask for one.
    pub(super) fn poll(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Stage> {
        // Dropped behind the lock: a recorder's code is not ours.
        #[allow(
            clippy::needless_late_init,
            reason = "it is dropped after what comes next"
        )]
        let _shown;
        let mut slot = self.slot.lock();
        // Under the lock: or the sweep, which has just seen it not come, would be
        // told that it does, and take what it has all the same.
        self.attention.attend(cx.waker());
        _shown = slot.shown.take();
        match &mut slot.stage {
            Stage::Waits => return Poll::Pending,
            Stage::Called => {
                slot.stage = Stage::Waits;
                return Poll::Ready(Stage::Called);
            }
            Stage::Lead(lead) => {
                let waker = Waker::from(Arc::clone(self));
                ready!(lead.poll(&mut Context::from_waker(&waker)));
            }
            Stage::Lease(_) | Stage::Failed(_) | Stage::Gone => {}
        }
        Poll::Ready(std::mem::replace(&mut slot.stage, Stage::Gone))
    }

    /// The task comes, and leaves the lease that it has here. Whether it is here still.
    pub(super) fn still_has(&self, cx: &Context<'_>) -> bool {
        #[allow(
            clippy::needless_late_init,
            reason = "it is dropped after what comes next"
        )]
        let _shown;
        let mut slot = self.slot.lock();
        self.attention.attend(cx.waker());
        _shown = slot.shown.take();
        let has = matches!(slot.stage, Stage::Lease(_));
        drop(slot);
        has
    }

    /// Whether the task comes for what it has.
    pub(super) fn look(&self, tick: Tick) -> Seen {
        let Some(slot) = self.slot.try_lock() else {
            return Seen::Waits;
        };
        let lease = match &slot.stage {
            Stage::Waits | Stage::Called => return Seen::Waits,
            Stage::Lease(_) => true,
            Stage::Lead(_) => false,
            // Whoever is told of a failure holds up nobody.
            Stage::Failed(_) | Stage::Gone => return Seen::Gone,
        };
        match self.attention.neglects_since(tick) {
            Some(since) => Seen::Neglects { lease, since },
            None => Seen::Comes { lease },
        }
    }

    /// Counts as held what lies here, until somebody comes for it.
    pub(super) fn show(&self) {
        let shown = self.labels.holding();
        let Some(mut slot) = self.slot.try_lock() else {
            return;
        };
        // Dropped outside of the lock: a recorder's code is not ours.
        let _too_late = match self.is_neglected(&slot) {
            true => slot.shown.replace(shown),
            false => Some(shown),
        };
        drop(slot);
    }

    /// Takes back what the task has not come for. `None` if it has just come, or
    /// left.
    pub(super) fn take_back(&self) -> Option<Stage> {
        let mut slot = self.slot.try_lock()?;
        if !self.is_neglected(&slot) {
            return None;
        }
        let _shown = slot.shown.take();
        let given = std::mem::replace(&mut slot.stage, Stage::Gone);
        drop(slot);
        Some(given)
    }

    /// Whether the task has come since it was last woken.
    pub(super) fn attends(&self) -> bool {
        self.attention.attends()
    }

    fn is_neglected(&self, slot: &Slot) -> bool {
        matches!(slot.stage, Stage::Lease(_) | Stage::Lead(_)) && !self.attends()
    }

    /// Has the task come, if it does, as if the store had woken it.
    pub(super) fn wake(&self) {
        self.attention.wake();
    }
}

impl Wake for Ticket {
    fn wake(self: Arc<Self>) {
        self.attention.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.attention.wake();
    }
}
