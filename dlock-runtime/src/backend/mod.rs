//! The [`Backend`] trait: one lease at a time, from any store.
//!
//! A backend waits in the store's queue, retries, and cleans up after dropped requests. It knows
//! nothing about tasks, reentrancy, policies or the timing of renewals: the layers above decide
//! when to extend a lease and when to give it back. [`Engine`](crate::Engine) is the backend of
//! every store but `memory:`; the protocol of such a store is its [`Store`](crate::store::Store).

mod contract;
mod finding;
pub(crate) mod losses;
mod mode;
pub(crate) mod numbers;
pub(crate) mod origin;
pub(crate) mod owner;
mod progress;
mod servers;

pub(crate) use self::contract::SHOWN_WAITERS;
pub use self::contract::{
    Backend, Capabilities, Grant, HolderInfo, Listed, LockInfo, ProcessInfo, Released, Renewed,
    Request, TokenTier, WaiterInfo,
};
pub use self::finding::{Finding, Level};
pub use self::mode::Mode;
pub use self::owner::Owner;
pub use self::progress::Progress;
pub use self::servers::{Protocol, Servers};
pub use crate::error::{BackendError, BackendErrorKind};
pub use crate::limits::MIN_TTL;
pub use crate::stores::*;
