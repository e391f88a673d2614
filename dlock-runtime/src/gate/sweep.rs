//! The sweep takes back what was given to tasks that do not collect it.
//!
//! A future that nobody polls (an arm of a `select!` whose other arm runs long, one of many in
//! `buffer_unordered`) cannot give anything away. A lease, the lead of a queue, or the store's
//! grant would stay with it, and keep everybody else waiting. So a task of the manager looks
//! every half second, as long as there is something to look at.
//!
//! It counts its own looks, not the time: after a pause of the whole process, every task is
//! given its time again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::clock::sleep;
use crate::lease::Leases;

const PERIOD: Duration = Duration::from_millis(500);

/// A task has this many looks after the first that saw it woken and not polled: between two and
/// a half and three seconds.
const PATIENCE: u32 = 5;

/// The number of a look. The first two numbers mean something else in `Attention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick(pub(super) u32);

impl Tick {
    pub(super) fn is_next_after(self, before: Self) -> bool {
        self.0 == before.0 + 1
    }

    /// Whether a task that was first seen unpolled at `first` has until the next look.
    pub(super) fn is_last_look_after(self, first: Self) -> bool {
        self.0.saturating_sub(first.0) + 1 == PATIENCE
    }

    /// Whether a task that was first seen unpolled at `first` has had its time.
    pub(super) fn is_too_long_after(self, first: Self) -> bool {
        self.0.saturating_sub(first.0) >= PATIENCE
    }
}

pub(super) struct Sweep {
    pub(super) leases: Arc<Leases>,
    /// Takes back what was not collected. Returns whether there is anything left to look at.
    looks: Box<dyn Fn(Tick) -> bool + Send + Sync>,
    /// The task that looks is running.
    armed: AtomicBool,
    tick: AtomicU32,
}

impl Sweep {
    pub(super) fn new(
        leases: &Arc<Leases>,
        looks: impl Fn(Tick) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            leases: Arc::clone(leases),
            looks: Box::new(looks),
            armed: AtomicBool::new(false),
            tick: AtomicU32::new(1),
        })
    }

    /// Makes the sweep look. Costs next to nothing if its task is running already.
    pub(super) fn arm(self: &Arc<Self>) {
        if self.armed.load(Ordering::SeqCst) || self.armed.swap(true, Ordering::SeqCst) {
            return;
        }
        let armed = Armed(Some(Arc::clone(self)));
        self.leases.executor.spawn(armed.work());
    }

    fn look(&self) -> bool {
        let tick = Tick(self.tick.fetch_add(1, Ordering::SeqCst) + 1);
        (self.looks)(tick)
    }
}

impl std::fmt::Debug for Sweep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweep")
            .field("armed", &self.armed)
            .field("tick", &self.tick)
            .finish_non_exhaustive()
    }
}

/// The task that looks. If it is dropped with its runtime, the next call of [`Sweep::arm`] begins
/// another.
struct Armed(Option<Arc<Sweep>>);

impl Armed {
    async fn work(mut self) {
        while let Some(sweep) = &self.0 {
            sleep(PERIOD).await;
            if sweep.look() {
                continue;
            }
            sweep.armed.store(false, Ordering::SeqCst);
            // A task that came between that look and the line above found the sweep armed, and did
            // not arm it.
            let again = sweep.look() && !sweep.armed.swap(true, Ordering::SeqCst);
            if !again {
                self.0 = None;
            }
        }
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some(sweep) = &self.0 {
            sweep.armed.store(false, Ordering::SeqCst);
        }
    }
}
