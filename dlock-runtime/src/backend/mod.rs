//! The stores, and the one small trait that each of them implements.
//!
//! A backend contains the protocol of its store and nothing else. It knows nothing about tasks,
//! reentrancy, policies or the timing of renewals: the layers above ask it for one lease at a
//! time, and decide when to extend it and when to give it back.

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
