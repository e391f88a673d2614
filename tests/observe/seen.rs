//! What a user's collectors see: spans and events as lines of JSON, metrics as
//! Prometheus scrapes them. Each test has keys and templates of its own, since
//! there is one of each collector in a process.

mod collector;
mod ends;
mod init;
mod keys;
mod labels;
mod losses;
mod outcomes;
mod sections;
mod stores;
#[path = "../support/mod.rs"]
mod support;
mod unclaimed;
mod zeros;

use std::time::Duration;

use dlock::backend::memory::Memory;
use dlock::{Config, LockManager};

/// A store, and a manager of it.
async fn memory() -> (Memory, LockManager) {
    collector::collector();
    let memory = Memory::new();
    let config = Config::with_backend(memory.clone());
    (memory, support::locks::connect(config).await)
}

const fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Lets every other task run until all of them wait.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
