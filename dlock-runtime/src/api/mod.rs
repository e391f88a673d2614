//! The public interface: requests, guards, bodies under a lock, the manager and its configuration.
//! It is the top layer; no other layer depends on it.

#[cfg(any(feature = "axum", feature = "tower"))]
mod answer;
#[cfg(feature = "axum")]
mod axum;
mod break_lock;
mod config;
mod guard;
mod manager;
mod request;
mod run;
mod scope;
#[cfg(feature = "tower")]
pub(crate) mod tower;

pub use config::Config;
pub use guard::LockGuard;
pub use manager::{LockManager, init, manager, shutdown};
pub use request::{Always, LockRequest, Once, lock};
pub use run::Run;
pub use scope::{Held, InLockScope, LockScopeExt, current};
