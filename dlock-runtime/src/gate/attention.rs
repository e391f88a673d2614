//! Whether a task that was woken is polled afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use super::sweep::{Sweep, Tick};
use crate::sync::Mutex;

/// The waker of a task, and whether the task is polled after it was woken. One that is not (an
/// arm of a `select!` whose other arm runs long) never collects what it was woken for.
#[derive(Debug)]
pub(super) struct Attention {
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
    pub(super) fn new(sweep: &Arc<Sweep>) -> Self {
        Self {
            sweep: Arc::clone(sweep),
            task: Mutex::default(),
            state: AtomicU32::new(ATTENDS),
        }
    }

    /// The task is being polled. Call this before looking at what it waits for: whatever
    /// arrives later wakes it again.
    pub(super) fn attend(&self, waker: &Waker) {
        self.state.store(ATTENDS, Ordering::SeqCst);
        let mut task = self.task.lock();
        match &mut *task {
            Some(known) => known.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }

    /// Wakes the task: there is something for it.
    pub(super) fn wake(&self) {
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

    pub(super) fn attends(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ATTENDS
    }

    /// The tick at which the sweep first saw the task woken and not polled, which may be this
    /// one. `None` if the task has been polled.
    pub(super) fn neglects_since(&self, tick: Tick) -> Option<Tick> {
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
