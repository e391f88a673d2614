//! The layers of the runtime over the `memory:` store, with paused time: what
//! a user would see of scope, gate and lease.
//!
//! What every store shows, `memory:` shows in the conformance suite. Here is what takes
//! a store that answers otherwise, exact times, or a runtime of its own; and what the
//! features `axum`, `serde` and `tower` add.

// A body may well give a future as its value.
#![allow(clippy::async_yields_async)]

#[cfg(feature = "axum")]
mod axum;
mod defaults;
mod gate;
mod late;
mod lease;
// `memory:` has none of these settings.
#[cfg(any(
    feature = "etcd",
    feature = "memcached",
    feature = "redis",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite",
    feature = "zookeeper"
))]
mod limits;
mod lock_order;
mod losses;
mod manager;
mod outages;
mod permits;
mod release;
mod run;
mod runtimes;
mod scope;
#[cfg(feature = "serde")]
mod serde;
mod several_keys;
mod shown;
mod spans;
#[cfg(feature = "tower")]
mod tower;
mod unheard;
mod unpolled;

use std::future::Future;
use std::time::Duration;

use dlock_conformance::support;
use dlock_conformance::support::runtimes::{current_thread, one_worker};
use dlock_runtime::backend::memory::Memory;
use dlock_runtime::{Config, LockManager};

/// A store, and a manager of it.
async fn manager() -> (Memory, LockManager) {
    let memory = Memory::new();
    let manager = connect(&memory).await;
    (memory, manager)
}

/// Another manager of the store: as good as another process.
async fn connect(memory: &Memory) -> LockManager {
    support::locks::connect(Config::with_backend(memory.clone())).await
}

/// Lets every other task run until all of them wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Whether a future is still waiting after everything else had its turn.
async fn waits(future: &mut (impl Future + Unpin)) -> bool {
    tokio::select! {
        biased;
        _ = future => false,
        () = settle() => true,
    }
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}
