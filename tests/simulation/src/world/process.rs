//! A process: its clock, its two executors, and what the runtime asks it for.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use dlock_runtime::simulation;
use dlock_runtime::store::Simulated;
use tokio::runtime::Handle;

use super::clock::MOST_DRIFT;
use super::timer::Timer;
use super::{Clock, ExecutorId, World};

/// A process, from its start to its end; one that is started anew is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessId(pub(crate) u32);

pub(crate) struct Process {
    pub(crate) id: ProcessId,
    this: Weak<Self>,
    world: Arc<World>,
    clock: Clock,
    /// The runtime of its tasks.
    pub(crate) caller: ExecutorId,
    /// The manager's own thread.
    pub(crate) manager: ExecutorId,
    dead: AtomicBool,
    count: AtomicU64,
}

impl Process {
    pub(crate) fn start(id: ProcessId, world: &Arc<World>) -> Arc<Self> {
        let drift = world.draw(|chance| chance.i64(-MOST_DRIFT..=MOST_DRIFT));
        Arc::new_cyclic(|this| Self {
            id,
            this: Weak::clone(this),
            world: Arc::clone(world),
            clock: Clock::new(drift),
            caller: world.executor(),
            manager: world.executor(),
            dead: AtomicBool::new(false),
            count: AtomicU64::new(0),
        })
    }

    pub(crate) fn world(&self) -> &Arc<World> {
        &self.world
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What its clock shows.
    pub(crate) fn shows(&self) -> Duration {
        self.clock.shows(self.world.now())
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// A task of its program.
    pub(crate) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        self.world.spawn(self.caller, self, work);
    }

    /// Ends it between two polls. What was sent is on its way all the same.
    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.world.kill(self.caller);
        self.world.kill(self.manager);
    }

    pub(crate) fn as_simulated(self: &Arc<Self>) -> Arc<dyn Simulated> {
        Arc::clone(self) as _
    }

    /// Does something as a part of it.
    pub(crate) fn within<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        simulation::enter(&self.as_simulated(), work)
    }

    /// Waits, by its clock.
    pub(crate) async fn sleep(&self, duration: Duration) {
        simulation::sleep(duration).await;
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.id)
    }
}

/// What the runtime asks of it.
impl Simulated for Process {
    fn runtime(&self) -> &Handle {
        &self.world.runtime
    }

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        if let Some(this) = self.this.upgrade() {
            self.world.spawn(self.manager, &this, work);
        }
    }

    fn draw(&self) -> f64 {
        self.world.draw(fastrand::Rng::f64)
    }

    fn count(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }

    fn now(&self) -> Instant {
        self.world.began + self.shows()
    }

    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let deadline = at.saturating_duration_since(self.world.began);
        let this = self.this.upgrade();
        Box::pin(async move {
            if let Some(process) = this {
                Timer::new(process, deadline).await;
            }
        })
    }
}
