//! What every page may use.

pub use std::sync::Arc;
pub use std::time::Duration;

pub use dlock::backend::memory::Memory;
pub use dlock::{
    Config, FencingToken, LockError, LockGuard, LockManager, LockScopeExt, current,
    distributed_lock, lock,
};
