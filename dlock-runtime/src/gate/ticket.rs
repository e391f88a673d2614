//! A task's stay at the gate, and what it is given there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use super::lead::Lead;
use super::shared_lease::SharedLease;
use super::sweep::{Sweep, Tick};
use crate::backend::Mode;
use crate::lease::NotGranted;
use crate::observe::{Counted, Labels, SectionSpan};
use crate::sync::Mutex;

/// What a task asks of the gate.
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    /// Does not wait, here or in the store.
    pub(crate) try_only: bool,
    /// Needs a fresh lease from the store, not one that is handed over, because it will not be
    /// renewed.
    pub(crate) fresh: bool,
    /// The critical section that it is for.
    pub(crate) section: &'a SectionSpan,
}

/// What a task and the gate share. What is put in is taken out exactly once: by the task when it is
/// polled or dropped, or by the gate when the task is not polled. The store's wake-ups pass through
/// it, so it knows whether the task is polled after them.
#[derive(Debug)]
pub(super) struct Ticket {
    /// Its number in the queue; 0 if it opened the queue, or came to keep a lease.
    pub(super) number: u64,
    /// Needs a fresh lease.
    pub(super) fresh: bool,
    labels: Labels,
    attention: Attention,
    slot: Mutex<Slot>,
}

#[derive(Debug)]
struct Slot {
    stage: Stage,
    /// Counts what lies here as held, while the task does not collect it.
    shown: Option<Counted>,
}

/// What a task waits for, or has been given.
#[derive(Debug)]
pub(super) enum Stage {
    Waits,
    /// It waits, and is to look for a loose lead.
    Called,
    Lease(SharedLease),
    Lead(Lead),
    Failed(NotGranted),
    /// The task has collected it, or has left, or it was taken back.
    Gone,
}

/// What the sweep sees when it looks at a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It waits, or is being polled right now.
    Waits,
    /// It is polled whenever it is woken: it asks the store, or has a lease and waits for its
    /// other keys.
    Comes { lease: bool },
    /// It has been given something, was woken, and has not been polled since. `since` is the first
    /// look that saw this.
    Neglects { lease: bool, since: Tick },
    /// It keeps nothing from others.
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

    /// Gives the task something. Returns it if the task no longer waits.
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

    /// Puts back the lead of the task, with the request that it has begun.
    pub(super) fn asks(&self, lead: Lead) {
        self.slot.lock().stage = Stage::Lead(lead);
    }

    /// The task leaves, with what it was given.
    pub(super) fn leave(&self) -> Stage {
        let (stage, _shown) = {
            let mut slot = self.slot.lock();
            let stage = std::mem::replace(&mut slot.stage, Stage::Gone);
            (stage, slot.shown.take())
        };
        stage
    }

    /// Takes out what the task was given, or keeps its waker. A lead is ready with the store's
    /// answer, or for the task to ask.
    pub(super) fn poll(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Stage> {
        // Dropped after the mutex is released, as it runs the code of a metrics recorder.
        #[allow(
            clippy::needless_late_init,
            reason = "it is dropped after what comes next"
        )]
        let _shown;
        let mut slot = self.slot.lock();
        // While the mutex is held. Otherwise the sweep, which has just seen the task unpolled,
        // could take back what it has although it is polled now.
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

    /// Called when the task is polled, which leaves its lease here. Returns whether the lease is
    /// still here.
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

    /// What the sweep sees of this task.
    pub(super) fn look(&self, tick: Tick) -> Seen {
        let Some(slot) = self.slot.try_lock() else {
            return Seen::Waits;
        };
        let lease = match &slot.stage {
            Stage::Waits | Stage::Called => return Seen::Waits,
            Stage::Lease(_) => true,
            Stage::Lead(_) => false,
            // A task that was told of a failure keeps nothing from others.
            Stage::Failed(_) | Stage::Gone => return Seen::Gone,
        };
        match self.attention.neglects_since(tick) {
            Some(since) => Seen::Neglects { lease, since },
            None => Seen::Comes { lease },
        }
    }

    /// Counts what lies here as held until it is collected or taken back.
    pub(super) fn show(&self) {
        let shown = self.labels.holding();
        let Some(mut slot) = self.slot.try_lock() else {
            return;
        };
        // Dropped after the mutex is released, as it runs the code of a metrics recorder.
        let _too_late = match self.is_neglected(&slot) {
            true => slot.shown.replace(shown),
            false => Some(shown),
        };
        drop(slot);
    }

    /// Takes back what the task has not collected. `None` if it has just been polled, or has
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

    /// Whether the task was polled since it was last woken.
    pub(super) fn attends(&self) -> bool {
        self.attention.attends()
    }

    fn is_neglected(&self, slot: &Slot) -> bool {
        matches!(slot.stage, Stage::Lease(_) | Stage::Lead(_)) && !self.attends()
    }

    /// Wakes the task, as the store would.
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

/// The waker of a task, and whether the task is polled after it was woken. One that is not (an
/// arm of a `select!` whose other arm runs long) never collects what it was woken for.
#[derive(Debug)]
struct Attention {
    sweep: Arc<Sweep>,
    task: Mutex<Option<Waker>>,
    state: AtomicU32,
}

/// Polled since it was last woken.
const ATTENDS: u32 = 0;
/// Woken, and not yet seen by the sweep. Any greater value is the tick at which the sweep first
/// saw the task woken and not polled.
const WOKEN: u32 = 1;

impl Attention {
    fn new(sweep: &Arc<Sweep>) -> Self {
        Self {
            sweep: Arc::clone(sweep),
            task: Mutex::default(),
            state: AtomicU32::new(ATTENDS),
        }
    }

    /// The task is being polled. Call this before looking at what it waits for: whatever
    /// arrives later wakes it again.
    fn attend(&self, waker: &Waker) {
        self.state.store(ATTENDS, Ordering::SeqCst);
        let mut task = self.task.lock();
        match &mut *task {
            Some(known) => known.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }

    /// Wakes the task: there is something for it.
    fn wake(&self) {
        let _woken_before =
            self.state
                .compare_exchange(ATTENDS, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        // Armed also if the task was woken before and not polled since: the sweep may have ended in
        // between.
        self.sweep.arm();
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }

    fn attends(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ATTENDS
    }

    /// The tick at which the sweep first saw the task woken and not polled, which may be this
    /// one. `None` if the task has been polled.
    fn neglects_since(&self, tick: Tick) -> Option<Tick> {
        match self.state.load(Ordering::SeqCst) {
            ATTENDS => None,
            WOKEN => {
                // This fails if the task has just been polled.
                let seen =
                    self.state
                        .compare_exchange(WOKEN, tick.0, Ordering::SeqCst, Ordering::SeqCst);
                seen.is_ok().then_some(tick)
            }
            seen => Some(Tick(seen)),
        }
    }
}
