//! Runtimes for a test.

use tokio::runtime::{Builder, Runtime};

/// A runtime that runs on the thread that uses it.
pub fn current_thread() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// A runtime that runs on its own thread.
pub fn one_worker() -> Runtime {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    runtime.expect("a runtime")
}
