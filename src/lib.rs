//! A distributed lock in one line over an async function, on the store you
//! already run.
//!
//! ```
//! use dlock::{LockError, distributed_lock};
//!
//! #[distributed_lock(key = "stock:<sku>", ttl = "30s", timeout = "2s")]
//! async fn deduct(sku: &str, quantity: u32) -> Result<u32, LockError> {
//!     // One task at a time is here for this sku, in all processes.
//!     Ok(quantity)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), LockError> {
//! // In a service: `dlock::Config::from_env()?`, which reads `DLOCK_URL`.
//! dlock::init(dlock::Config::from_url("memory:")?).await?;
//! deduct("blue-mug", 1).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`distributed_lock`] has the table of arguments. Without the attribute, ask
//! with [`lock`]; for a second store or for tests that run side by side,
//! connect a [`LockManager`].
//!
//! # Words
//!
//! A *key* names a lock; a *holder* has a *lease* on it for at most its *ttl*
//! unless it *renews*; a *waiter* queues; every grant carries a *fencing
//! token*, which tells a late writer from the present holder.
//!
//! # Features
//!
//! - `redis` (default): the `redis://` store.
//! - `tls` (default): encrypted connections, `rediss://`, with rustls.
//! - `axum`: an axum handler may return a [`LockError`], whose page says with
//!   which status.
//! - `metrics`: numbers on every lock, through the `metrics` facade.
//!
//! The `memory:` store is always there.

pub use dlock_macros::distributed_lock;
pub use dlock_runtime::{
    Config, FencingToken, Held, InLockScope, LockError, LockGuard, LockKey, LockManager,
    LockRequest, LockScopeExt, LossReason, MAX_KEY_BYTES, ManagerScope, OnLost, Patience, Run,
    Source, TOKENS_PER_GRANT, backend, current, init, lock, shutdown,
};

#[doc(hidden)]
pub use dlock_runtime::__private;
