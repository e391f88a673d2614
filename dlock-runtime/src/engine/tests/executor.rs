//! Executors that a test stalls one by one.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::runtime::Handle;

use crate::engine::time::Spawn;

/// Stands for the manager's thread, or for a caller's runtime: it polls what it
/// runs, but not while it is stalled.
pub(super) struct Executor {
    runtime: Handle,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    stalled: bool,
    woken: Vec<Waker>,
}

impl Executor {
    /// On the runtime of the test.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            runtime: Handle::current(),
            state: Arc::default(),
        })
    }

    pub(super) fn stall(&self) {
        lock(&self.state).stalled = true;
    }

    pub(super) fn go_on(&self) {
        let mut state = lock(&self.state);
        state.stalled = false;
        state.woken.drain(..).for_each(Waker::wake);
    }

    pub(super) fn run<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        let state = Arc::clone(&self.state);
        let mut work = Box::pin(work);
        poll_fn(move |context| {
            let mut state = lock(&state);
            if state.stalled {
                state.woken.push(context.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            work.as_mut().poll(context)
        })
    }
}

impl Spawn for Executor {
    #[cfg(feature = "redis")]
    fn clock(&self) -> crate::deadline::ManagerClock {
        let _entered = self.runtime.enter();
        crate::deadline::ManagerClock::of_this_runtime().expect("a runtime")
    }

    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.runtime.spawn(self.run(work));
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Executor")
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
