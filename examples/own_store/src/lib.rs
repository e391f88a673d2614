//! A store of one's own: locks in a directory of files, for the processes of one
//! Linux machine.
//!
//! It is complete: locks expire when their holder dies, waiters are served in order, and tokens
//! rise across a crash of the machine. The engine does most of the work: it waits, retries, gives
//! back what a caller left behind, and tells an outage from a lock that is held.
//!
//! It is for one machine and a local disk: another machine has another clock, and refuses the
//! files. Nothing may clean the directory up as it does with temporary files. If the directory is
//! removed, or lies in memory (`tmpfs`) and the machine restarts, the tokens start again.
//!
//! - `clock.rs`: the time that all processes of a machine have in common.
//! - `lock.rs`: what is known of a lock, and what may be done with it.
//! - `files.rs`: one lock, one file, changed by one process at a time.
//! - `store.rs`: what the engine asks of it.
//!
//! ```
//! use dlock::{Config, LockManager};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = std::env::temp_dir().join(format!("own-store-{}", std::process::id()));
//! # std::fs::create_dir_all(&directory)?;
//! let config = Config::with_backend(own_store::directory(&directory));
//! let manager = LockManager::connect(config).await?;
//! let guard = manager.lock("nightly").acquire().await?;
//! guard.release().await?;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok(()) }
//! ```

mod clock;
pub mod files;
pub mod lock;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use dlock::Engine;

pub use store::Directory;

/// A backend whose locks are in this directory, which must be there. All processes
/// that share them name the same one.
pub fn directory(path: impl Into<PathBuf>) -> Engine<Directory> {
    Engine::new(path.into())
}
