//! The manager that `dlock::init` installs for the whole process.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::config::Config;
use super::manager::LockManager;
use crate::core::scope::INSTALLED;
use crate::error::LockError;

/// One `init` at a time; another may try after it has failed.
static INITIALIZING: Mutex<()> = Mutex::const_new(());

/// Connects to the store and makes it the one that annotated functions and [`lock`](crate::lock)
/// use. Call it once, at start-up. The connection outlives the runtime on which it is called.
///
/// # Errors
///
/// [`LockError::AlreadyInitialized`] at the second call, even while the first is still connecting;
/// otherwise the errors of [`LockManager::connect`]. After a failure, or if the future is dropped,
/// it may be called again.
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// dlock::init(dlock::Config::default()).await?;
/// # Ok(()) }
/// ```
pub async fn init(config: Config) -> Result<(), LockError> {
    install(config).await
}

/// Boxed, so that the code is in the binary once, and not wherever `init` is awaited.
fn install(config: Config) -> BoxFuture<'static, Result<(), LockError>> {
    Box::pin(async move {
        let Ok(_initializing) = INITIALIZING.try_lock() else {
            return Err(LockError::AlreadyInitialized);
        };
        if INSTALLED.get().is_some() {
            return Err(LockError::AlreadyInitialized);
        }
        if config.is_memory() {
            tracing::warn!(
                target: "dlock",
                "dlock uses the `memory:` store: its locks hold inside this process only"
            );
        }
        let manager = LockManager::connect(config).await?;
        let installed = INSTALLED.set(Arc::clone(manager.inner()));
        installed.map_err(|_| LockError::AlreadyInitialized)
    })
}

/// The manager that [`init`] has installed, for its other methods: `inspect`, `list`, `ping`,
/// `capabilities`. `None` before `init`.
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// assert!(dlock::manager().is_none());
/// dlock::init(dlock::Config::default()).await?;
/// let manager = dlock::manager().expect("it was initialised");
/// assert!(manager.inspect("stock:42").await?.is_none());
/// # Ok(()) }
/// ```
#[must_use]
pub fn manager() -> Option<LockManager> {
    INSTALLED.get().map(Arc::clone).map(LockManager::new)
}

/// Refuses new locks from now on and waits until every release in progress is done; see
/// [`LockManager::shutdown`]. Does nothing before [`init`].
pub async fn shutdown() {
    if let Some(manager) = INSTALLED.get() {
        manager.leases.shutdown().await;
    }
}
