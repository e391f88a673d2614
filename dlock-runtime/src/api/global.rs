//! The manager that `dlock::init` installs for the whole process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::config::Config;
use super::manager::LockManager;
use crate::core::installed::{install, installed};
use crate::error::LockError;

static INITIALIZING: AtomicBool = AtomicBool::new(false);

/// Connects to the store and makes it the one that annotated functions and
/// [`lock`](crate::lock) use. Call it once, at start-up; it outlives the
/// runtime it is called on.
///
/// # Errors
///
/// [`LockError::AlreadyInitialized`] at the second call, also while the first
/// is still connecting; else what [`LockManager::connect`] says. After a
/// failure, or if the future is dropped, it may be called again.
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// dlock::init(dlock::Config::default()).await?;
/// # Ok(()) }
/// ```
pub async fn init(config: Config) -> Result<(), LockError> {
    let Some(_initializing) = Initializing::begin() else {
        return Err(LockError::AlreadyInitialized);
    };
    if installed().is_some() {
        return Err(LockError::AlreadyInitialized);
    }
    if config.is_memory() {
        tracing::warn!(
            target: "dlock",
            "dlock uses the `memory:` store: its locks hold inside this process only"
        );
    }
    let manager = LockManager::connect(config).await?;
    install(Arc::clone(manager.inner()))
}

/// Refuses locks from now on and waits until every release under way is done;
/// see [`LockManager::shutdown`]. Does nothing before [`init`].
pub async fn shutdown() {
    if let Some(manager) = installed() {
        manager.leases().shutdown().await;
    }
}

/// One `init` at a time; the next one may try when it has failed.
struct Initializing;

impl Initializing {
    fn begin() -> Option<Self> {
        let free = INITIALIZING
            .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        free.then_some(Self)
    }
}

impl Drop for Initializing {
    fn drop(&mut self) {
        INITIALIZING.store(false, Ordering::Release);
    }
}
