//! The runtime behind the `dlock` crate, whose name users see.
//!
//! A call passes down through these layers, and each layer knows only the one below it:
//!
//! - scope: does the calling code hold the key already? Then re-enter.
//! - gate: tasks of this process that want the same key queue here.
//! - lease: renewal, local deadline, loss, and a release that always happens.
//! - engine, behind the [`backend::Backend`] trait: waiting, retries, cleanup, wake-ups.
//! - [`store::Store`]: the protocol of one store, and nothing else.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Each store uses another part of what all of them share. What none uses is found where all of them
// are built.
#![cfg_attr(
    not(all(
        feature = "etcd",
        feature = "memcached",
        feature = "mysql",
        feature = "postgres",
        feature = "redis-cluster",
        feature = "redis-redlock",
        feature = "redis-sentinel",
        feature = "sqlite",
        feature = "tls",
        feature = "zookeeper",
    )),
    allow(dead_code)
)]

mod apart;
mod api;
pub mod backend;
mod clock;
mod core;
mod deadline;
mod duration;
mod engine;
mod error;
mod executor;
mod gate;
mod in_flight;
mod key;
mod lease;
mod limits;
mod lock_order;
#[doc(hidden)]
pub mod macro_support;
mod observe;
mod options;
mod outlast;
#[cfg(all(any(test, feature = "quorum"), not(feature = "simulation")))]
#[allow(unreachable_pub)]
mod quorum;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod quorum;
mod reach;
mod simulated;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
pub mod store;
mod stores;
mod sync;
mod tables;
mod token;

pub use api::{
    Config, Held, InLockScope, LockGuard, LockManager, LockRequest, LockScopeExt, Run, current,
    init, lock, manager, shutdown,
};
#[doc(hidden)]
pub use duration::parse_duration;
pub use engine::Engine;
#[doc(hidden)]
pub use engine::bare;
pub use error::{ErrorCause, LockError, LossReason};
pub use key::{LockKey, MAX_KEY_BYTES};
pub use options::{OnLost, Patience};
pub use token::{FencingToken, TOKENS_PER_GRANT};

/// Whether a body that has returned is remembered, as the type of a [`LockRequest`] says.
pub mod request {
    pub use crate::api::{Always, Once};
}

/// A limit on concurrent requests, for services that are built with `tower`'s layers.
#[cfg(feature = "tower")]
pub mod tower {
    pub use crate::api::tower::{Limit, LimitLayer};
}

/// The names that the attribute's expansion uses.
#[doc(hidden)]
pub mod __private {
    pub use crate::backend::Mode;
    pub use crate::key::{KeyTemplate, LockKey};
    pub use crate::macro_support::*;
    pub use crate::options::{OnLost, Options, Part, Patience, Shapes};
    pub use crate::{LockError, Run};
}
