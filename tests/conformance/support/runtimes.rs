//! Runtimes of a test's own.

use tokio::runtime::{Builder, Runtime};

/// One that runs on the thread that uses it.
pub fn current_thread() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

/// One that runs by itself.
pub fn one_worker() -> Runtime {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build();
    runtime.expect("a runtime")
}
