//! A task's stay at the gate, and what it is given there.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::attention::Attention;
use super::place::StorePlace;
use super::shared_lease::SharedLease;
use super::sweep::{Sweep, Tick};
use crate::backend::Mode;
use crate::lease::{Answer, NotHad};
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
    /// Needs a lease that was not used before.
    fresh: bool,
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
    Has(Given),
    TakenBack,
    /// The task has what it came for, or has left.
    Gone,
}

/// What a task is given.
#[derive(Debug)]
pub(super) enum Given {
    Lease(SharedLease),
    /// The right to speak to the store, with the request to it once there is one.
    Lead(Option<StorePlace>),
    Failed(NotHad),
}

/// What a task comes for.
#[derive(Debug)]
pub(super) enum Came {
    Lease(SharedLease),
    /// It leads, and is to ask the store.
    Leads,
    /// It leads, and the store has answered.
    Answer(Answer),
    Failed(NotHad),
    /// There is something new to be seen.
    Called,
    /// It was given something and did not come in time.
    TooLate,
}

/// What the sweep sees of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It waits, as far as is known, or is polled right now.
    Waits,
    /// It asks the store, and comes whenever it is woken.
    Asks,
    /// It has something, and has not come for it since this look.
    Neglects { lease: bool, since: Tick },
    /// It holds up nobody.
    Gone,
}

impl Ticket {
    pub(super) fn new(sweep: &Arc<Sweep>, entry: &Entry<'_>, stage: Stage) -> Arc<Self> {
        Arc::new(Self {
            fresh: entry.fresh,
            labels: entry.section.labels(),
            attention: Attention::new(sweep),
            slot: Mutex::new(Slot { stage, shown: None }),
        })
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Not to be asked of one that leads: it may be polled, for long.
    pub(super) fn is_waiting(&self) -> bool {
        self.slot.lock().stage.is_waiting()
    }

    /// Gives the task something, or back what it does not wait for any more.
    pub(super) fn give(&self, given: Given) -> Result<(), Given> {
        {
            let mut slot = self.slot.lock();
            if !slot.stage.is_waiting() {
                return Err(given);
            }
            slot.stage = Stage::Has(given);
        }
        self.attention.wake();
        Ok(())
    }

    /// Has the task look around. Whether it waits.
    pub(super) fn call(&self) -> bool {
        {
            let mut slot = self.slot.lock();
            if !slot.stage.is_waiting() {
                return false;
            }
            slot.stage = Stage::Called;
        }
        self.attention.wake();
        true
    }

    /// The task leads, and goes on by this request.
    pub(super) fn asks(&self, place: StorePlace) {
        self.slot.lock().stage = Stage::Has(Given::Lead(Some(place)));
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

    /// What has come for the task, or its waker is kept for when it does.
    pub(super) fn poll(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Came> {
        // Dropped behind the lock: neither a recorder's code nor a store's is ours.
        let (_shown, _elsewhere);
        let mut slot = self.slot.lock();
        // Under the lock: or the sweep, which has just seen it not come, would be
        // told that it does, and take what it has all the same.
        self.attention.attend(cx.waker());
        _shown = slot.shown.take();
        Poll::Ready(match std::mem::replace(&mut slot.stage, Stage::Gone) {
            Stage::Waits => {
                slot.stage = Stage::Waits;
                return Poll::Pending;
            }
            Stage::Called => {
                slot.stage = Stage::Waits;
                Came::Called
            }
            Stage::Has(Given::Lease(lease)) => Came::Lease(lease),
            Stage::Has(Given::Failed(not_had)) => Came::Failed(not_had),
            Stage::Has(Given::Lead(Some(mut place))) if place.is_here() => {
                // Out of it while it is polled: what panics is not polled again.
                slot.stage = Stage::Has(Given::Lead(None));
                let waker = Waker::from(Arc::clone(self));
                let Poll::Ready(answer) = place.poll(&mut Context::from_waker(&waker)) else {
                    slot.stage = Stage::Has(Given::Lead(Some(place)));
                    return Poll::Pending;
                };
                slot.stage = Stage::Gone;
                Came::Answer(answer)
            }
            Stage::Has(Given::Lead(elsewhere)) => {
                _elsewhere = elsewhere;
                Came::Leads
            }
            Stage::TakenBack | Stage::Gone => Came::TooLate,
        })
    }

    /// Whether the task comes for what it has.
    pub(super) fn look(&self, tick: Tick) -> Seen {
        let Some(slot) = self.slot.try_lock() else {
            return Seen::Waits;
        };
        let lease = match &slot.stage {
            Stage::Waits | Stage::Called => return Seen::Waits,
            Stage::Has(Given::Lease(_)) => true,
            Stage::Has(Given::Lead(_)) => false,
            // Whoever is told of a failure holds up nobody.
            Stage::Has(Given::Failed(_)) | Stage::TakenBack | Stage::Gone => return Seen::Gone,
        };
        match self.attention.neglects_since(tick) {
            Some(since) => Seen::Neglects { lease, since },
            None => Seen::Asks,
        }
    }

    /// Counts as held what lies here, until somebody comes for it.
    pub(super) fn show(&self) {
        let shown = self.labels.holding();
        let Some(mut slot) = self.slot.try_lock() else {
            return;
        };
        let has_come = !matches!(slot.stage, Stage::Has(_)) || self.attention.attends();
        // Dropped outside of the lock: a recorder's code is not ours.
        let _too_late = match has_come {
            true => Some(shown),
            false => slot.shown.replace(shown),
        };
        drop(slot);
    }

    /// Takes back what the task has not come for. `None` if it has just come, or
    /// left.
    pub(super) fn take_back(&self) -> Option<Given> {
        let mut slot = self.slot.try_lock()?;
        if self.attention.attends() || !matches!(slot.stage, Stage::Has(_)) {
            return None;
        }
        let stage = std::mem::replace(&mut slot.stage, Stage::TakenBack);
        let _shown = slot.shown.take();
        drop(slot);
        match stage {
            Stage::Has(given) => Some(given),
            _ => None,
        }
    }

    /// Has the task come, if it does, as if the store had woken it.
    pub(super) fn wake(&self) {
        self.attention.wake();
    }
}

impl Stage {
    fn is_waiting(&self) -> bool {
        matches!(self, Self::Waits | Self::Called)
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
