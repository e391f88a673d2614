//! Whether a task that was woken has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use super::sweep::{Sweep, Tick};
use crate::sync::Mutex;

/// What a task is waiting for, as the sweep sees it: a task that is woken and
/// never polled (an arm of a `select!` whose other arm runs long) will not take
/// what it was woken for.
#[derive(Debug)]
pub(super) struct Attention {
    sweep: Arc<Sweep>,
    task: Mutex<Option<Waker>>,
    state: AtomicU32,
}

/// It was polled since it was last woken.
const ATTENDS: u32 = 0;
/// It was woken, and the sweep does not know yet. What is more is the tick at
/// which the sweep first saw that.
const WOKEN: u32 = 1;

impl Attention {
    pub(super) fn new(sweep: &Arc<Sweep>) -> Self {
        Self {
            sweep: Arc::clone(sweep),
            task: Mutex::default(),
            state: AtomicU32::new(ATTENDS),
        }
    }

    /// The task is polled. To be called before it looks at what it waits for:
    /// whatever comes after that wakes it again.
    pub(super) fn attend(&self, waker: &Waker) {
        self.state.store(ATTENDS, Ordering::SeqCst);
        let mut task = self.task.lock();
        match &mut *task {
            Some(known) => known.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }

    /// There is something to come for.
    pub(super) fn wake(&self) {
        let _woken_before =
            self.state
                .compare_exchange(ATTENDS, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        // Also for one that was called before, and has not come since: the sweep had no
        // reason to stay.
        self.sweep.arm();
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }

    pub(super) fn attends(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ATTENDS
    }

    /// Since when the sweep has seen it not come, this tick for the first time
    /// included. `None`: it attends.
    pub(super) fn neglects_since(&self, tick: Tick) -> Option<Tick> {
        match self.state.load(Ordering::SeqCst) {
            ATTENDS => None,
            WOKEN => {
                // If this fails, it has just been polled.
                let seen =
                    self.state
                        .compare_exchange(WOKEN, tick.0, Ordering::SeqCst, Ordering::SeqCst);
                seen.is_ok().then_some(tick)
            }
            seen => Some(Tick(seen)),
        }
    }
}
