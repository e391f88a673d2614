//! The sweep: what was given to a task that does not come for it is taken back.
//!
//! A future that nobody polls cannot let go of anything by itself: an arm of a
//! `select!` whose other arm runs long, one of many in `buffer_unordered`. What
//! it is given, be it a lease, the right to speak to the store or the store's
//! grant, would be kept from everybody else for as long. So a task of the
//! manager's own looks, as long as there is something to look at.
//!
//! It counts its own looks and not the time. After a pause of the whole process
//! everybody is given the time to come again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::lease::Leases;
use crate::timer::sleep;

const PERIOD: Duration = Duration::from_millis(500);

/// Who has not come so many looks after the first that saw it has had two and
/// a half to three seconds.
const PATIENCE: u32 = 5;

/// The number of a look. The first ones mean something else in `Attention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tick(pub(super) u32);

impl Tick {
    pub(super) fn is_next_after(self, before: Self) -> bool {
        self.0 == before.0 + 1
    }

    /// Whether whoever was first seen not to come at `first` has until the next look.
    pub(super) fn is_last_look_after(self, first: Self) -> bool {
        self.0.saturating_sub(first.0) + 1 == PATIENCE
    }

    /// Whether whoever was first seen not to come at `first` has had the time.
    pub(super) fn is_too_long_after(self, first: Self) -> bool {
        self.0.saturating_sub(first.0) >= PATIENCE
    }
}

pub(super) struct Sweep {
    pub(super) leases: Arc<Leases>,
    /// Takes back what nobody has come for. Whether there is more that may come to
    /// that.
    looks: Box<dyn Fn(Tick) -> bool + Send + Sync>,
    /// Its task is there.
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

    /// There is something to look at. Costs next to nothing if the task is
    /// there already.
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

/// The sweep's task. If it is dropped, with its runtime, the next one to arm
/// the sweep begins another.
struct Armed(Option<Arc<Sweep>>);

impl Armed {
    async fn work(mut self) {
        while let Some(sweep) = &self.0 {
            sleep(PERIOD).await;
            if sweep.look() {
                continue;
            }
            sweep.armed.store(false, Ordering::SeqCst);
            // Who came between the two has found it armed.
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
