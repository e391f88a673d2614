//! What the pages take for granted: a shop, a batch, a report. Each snippet
//! imports the module named like its page, or [`usual`] if there is none.

use std::future::Future;

use dlock::backend::memory::Memory;
use dlock::{Config, LockManager};

pub mod axum;
pub mod migrating;
pub mod operations;
pub mod permits;
pub mod readme;
pub mod recipes;
pub mod testing;
pub mod usual;

/// What a snippet of statements ends with.
pub type Answer = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Runs a snippet in a process whose locks are its own.
///
/// # Errors
///
/// Those of the snippet.
pub async fn in_memory(snippet: impl Future<Output = Answer>) -> Answer {
    let manager = LockManager::connect(Config::with_backend(Memory::new())).await?;
    manager.scope(snippet).await
}
