//! Simulated time, and who runs when.
//!
//! Everything is in one thread. A step is one poll of a task, chosen by chance
//! among those that could run; when none can, time goes on to the next event. So a
//! run is decided by its seed alone.

mod clock;
mod executor;
mod flag;
mod process;
mod timer;

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::runtime::Handle;

pub(crate) use self::clock::{Clock, MOST_DRIFT};
pub(crate) use self::executor::ExecutorId;
use self::executor::{Executors, Task};
pub(crate) use self::flag::Flag;
pub(crate) use self::process::{Process, ProcessId};

/// Time since the run began, by nobody's clock.
pub(crate) type At = Duration;

/// So many steps without any time passing is a loop that does nothing.
const BUSY: u32 = 50_000;

pub(crate) struct World {
    inner: Mutex<Inner>,
    executors: Mutex<Executors>,
    /// What clocks count from.
    began: Instant,
    /// It runs nothing, and lets code find a runtime that looks for one.
    runtime: Handle,
    trace: bool,
}

struct Inner {
    now: At,
    chance: Rng,
    events: BinaryHeap<Event>,
    /// How many events there were: of those at one time, the first comes first.
    order: u64,
    steps: u64,
    since_event: u32,
    /// Whose task is polled.
    running: Option<ExecutorId>,
}

struct Event {
    /// In nanoseconds: there are thousands, which are sorted by it.
    at: u64,
    order: u64,
    what: Box<dyn FnOnce() + Send>,
}

/// Why a run did not go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// There is nothing left to happen.
    Idle,
    /// Its time was up.
    Late,
    /// Tasks wake each other, and no time passes.
    Busy,
}

impl World {
    pub(crate) fn new(seed: u64, runtime: Handle, trace: bool) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                now: At::ZERO,
                chance: Rng::with_seed(seed),
                events: BinaryHeap::new(),
                order: 0,
                steps: 0,
                since_event: 0,
                running: None,
            }),
            executors: Mutex::default(),
            began: Instant::now(),
            runtime,
            trace,
        })
    }

    pub(crate) fn now(&self) -> At {
        self.inner().now
    }

    pub(crate) fn steps(&self) -> u64 {
        self.inner().steps
    }

    /// Draws by the seed.
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.inner().chance)
    }

    /// A duration between these.
    pub(crate) fn between(&self, least: Duration, most: Duration) -> Duration {
        let (least, most) = (nanos(least), nanos(most));
        Duration::from_nanos(self.draw(|chance| chance.u64(least..=most)))
    }

    /// Whether this happens, of so many in a thousand.
    pub(crate) fn happens(&self, in_thousand: u32) -> bool {
        self.draw(|chance| chance.u32(..1000)) < in_thousand
    }

    /// Does this then, or at once if that is past.
    pub(crate) fn at(&self, at: At, what: impl FnOnce() + Send + 'static) {
        let mut inner = self.inner();
        let at = nanos(at.max(inner.now));
        inner.order += 1;
        let order = inner.order;
        inner.events.push(Event {
            at,
            order,
            what: Box::new(what),
        });
    }

    pub(crate) fn log(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>12.6} {}", self.now().as_secs_f64(), what());
        }
    }

    /// Whose task is polled now.
    pub(crate) fn running(&self) -> Option<ExecutorId> {
        self.inner().running
    }

    pub(crate) fn executor(&self) -> ExecutorId {
        self.executors().add()
    }

    pub(crate) fn spawn(
        &self,
        on: ExecutorId,
        process: &Arc<Process>,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let task = self.executors().spawn(on, process, Box::pin(work));
        // What nobody runs is dropped outside of the lock, as its drop may spawn.
        drop(task);
    }

    /// It polls nothing until it goes on.
    pub(crate) fn stall(&self, executor: ExecutorId) {
        self.executors().stall(executor);
    }

    pub(crate) fn go_on(&self, executor: ExecutorId) {
        self.executors().go_on(executor);
    }

    /// Its tasks end here and now, and there will be no others.
    pub(crate) fn kill(&self, executor: ExecutorId) {
        let tasks = self.executors().kill(executor);
        tasks.iter().for_each(|task| task.end());
    }

    /// How many tasks it has.
    pub(crate) fn tasks(&self, executor: ExecutorId) -> usize {
        self.executors().tasks(executor)
    }

    /// Goes on until this is so, or cannot come to be so.
    pub(crate) fn run_until(&self, limit: At, is_so: impl Fn() -> bool) -> Result<(), Stopped> {
        let _entered = self.runtime.enter();
        loop {
            if is_so() {
                return Ok(());
            }
            let next = {
                let mut executors = self.executors();
                executors.choose(|among| self.draw(|chance| chance.usize(..among)))
            };
            if let Some(task) = next {
                self.poll(&task);
                if self.inner().since_event > BUSY {
                    return Err(Stopped::Busy);
                }
                continue;
            }
            let event = {
                let mut inner = self.inner();
                // One that comes too late is left where it is.
                if inner
                    .events
                    .peek()
                    .is_some_and(|next| next.at > nanos(limit))
                {
                    return Err(Stopped::Late);
                }
                let Some(event) = inner.events.pop() else {
                    return Err(Stopped::Idle);
                };
                let at = Duration::from_nanos(event.at);
                if at > inner.now {
                    inner.since_event = 0;
                }
                inner.now = at;
                event
            };
            (event.what)();
        }
    }

    /// Forgets what has not happened, which holds on to the world.
    pub(crate) fn clear(&self) {
        let events = std::mem::take(&mut self.inner().events);
        drop(events);
    }

    fn poll(&self, task: &Arc<Task>) {
        {
            let mut inner = self.inner();
            inner.steps += 1;
            inner.since_event += 1;
            inner.running = Some(task.executor);
        }
        let waker = Waker::from(Arc::clone(task));
        if task.poll(&mut Context::from_waker(&waker)) {
            self.executors().ended(task);
        }
        self.inner().running = None;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn executors(&self) -> MutexGuard<'_, Executors> {
        self.executors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Ord for Event {
    /// The soonest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Event {}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
