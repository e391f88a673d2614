#![doc = "dlock"]
pub use dlock_macros::distributed_lock;
pub use dlock_runtime::*;
