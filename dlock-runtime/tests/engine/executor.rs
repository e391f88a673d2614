//! Executors that a test stalls one by one.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use fastrand::Rng;
use tokio::runtime::Handle;

use crate::simulated::Simulated;
use crate::sync::Mutex;

thread_local! {
    /// The executors of a test draw different numbers, but each run draws the same ones.
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Called at the start of each test, so that every run draws the same numbers.
pub(super) fn draw_as_ever() {
    SEED.set(0);
}

/// Stands for the manager's thread or for a caller's runtime. It polls its tasks, except while it
/// is stalled.
pub(super) struct Executor {
    runtime: Handle,
    state: Arc<Mutex<State>>,
}

struct State {
    stalled: bool,
    chance: Rng,
    woken: Vec<Waker>,
}

impl Executor {
    /// On the runtime of the test.
    pub(super) fn new() -> Arc<Self> {
        let seed = SEED.get();
        SEED.set(seed + 1);
        Arc::new(Self {
            runtime: Handle::current(),
            state: Arc::new(Mutex::new(State {
                stalled: false,
                chance: Rng::with_seed(seed),
                woken: Vec::new(),
            })),
        })
    }

    pub(super) fn stall(&self) {
        self.state.lock().stalled = true;
    }

    pub(super) fn go_on(&self) {
        let mut state = self.state.lock();
        state.stalled = false;
        state.woken.drain(..).for_each(Waker::wake);
    }

    pub(super) fn run<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let state = Arc::clone(&self.state);
        let mut work = Box::pin(work);
        poll_fn(move |context| {
            let mut state = state.lock();
            if state.stalled {
                state.woken.push(context.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            work.as_mut().poll(context)
        })
    }
}

impl Simulated for Executor {
    fn runtime(&self) -> &Handle {
        &self.runtime
    }

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.runtime.spawn(self.run(work));
    }

    fn draw(&self) -> f64 {
        self.state.lock().chance.f64()
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Executor")
    }
}
