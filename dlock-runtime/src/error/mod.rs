//! The one error of the public surface, and what a store says of itself below it.

mod backend;

use std::time::Duration;

use self::backend::Denied;
pub use self::backend::{BackendError, BackendErrorKind, Source};
use crate::backend::Mode;
use crate::key::LockKey;
use crate::token::FencingToken;

/// Why a lock was not had, or is no longer held.
///
/// Every variant says the key or setting, what happened and what to do. `Busy`
/// and `Timeout` mean that somebody else has the lock; `Done` that nobody needs it; `TakenOut` that
/// an operator let the caller wait no longer; `Unavailable` that the
/// store did not answer; `Lost` that the body began but its lease ended.
///
/// With feature `axum` it is a response.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else holds the lock, and the caller asked not to wait.
    #[error("lock `{key}` is held by somebody else; try again later, or wait with `timeout`")]
    #[non_exhaustive]
    Busy {
        /// The key that is held.
        key: LockKey,
    },

    /// The lock was to be had once, with `once`, and the body of another call, here or
    /// elsewhere, has returned `Ok` under it. That is remembered for the time that call
    /// gave; until then, nobody gets the lock.
    #[error(
        "lock `{key}`: what it protects has been done, and `once` remembers that; there is nothing \
         left to do, or call `LockManager::forget` to have it done again"
    )]
    #[non_exhaustive]
    Done {
        /// The key whose body has been done.
        key: LockKey,
    },

    /// The caller waited for the lock, and an operator has taken it out of the queue
    /// ([`LockManager::break_waiter`](crate::LockManager::break_waiter)). The others in its
    /// process that waited in the same place are told the same.
    #[error(
        "lock `{key}`: an operator has taken this request out of the queue; ask again if the lock \
         is still needed"
    )]
    #[non_exhaustive]
    TakenOut {
        /// The key that was waited for.
        key: LockKey,
    },

    /// The lock was not had within the caller's timeout.
    #[error(
        "lock `{key}` was not had within {waited:?}; raise the timeout, or look at what holds \
         it with `LockManager::inspect`"
    )]
    #[non_exhaustive]
    Timeout {
        /// The key that was waited for.
        key: LockKey,
        /// The timeout that has passed.
        waited: Duration,
    },

    /// The lease ended while the body ran, or was taken away: the work may
    /// overlap with that of another holder.
    #[error(
        "the lease on lock `{key}` was lost (token {token}): {reason}; what it protected may \
         have been taken over, so check before you repeat the work"
    )]
    #[non_exhaustive]
    Lost {
        /// The key whose lease ended.
        key: LockKey,
        /// The token under which the body ran.
        token: FencingToken,
        /// How the lease ended.
        reason: LossReason,
    },

    /// The store could not be reached, did not answer in time or refused.
    #[error("{subject}: the store is unavailable: {reason}")]
    #[non_exhaustive]
    Unavailable {
        /// What was being done, as a rule "lock `<key>`".
        subject: String,
        /// What the store or its client said, and what to do.
        reason: String,
        /// What caused it, if something below did.
        source: Option<Source>,
    },

    /// Waiting could never end: the caller's own task holds the key for reading or
    /// by a permit and asks to write, or holds it for reading and asks for a permit.
    #[error(
        "lock `{key}`: this task holds it {} and asks for it {}, which would wait for itself; \
         take it {} from the start", held.held(), wanted.held(), wanted.held()
    )]
    #[non_exhaustive]
    WouldDeadlock {
        /// The key that is held.
        key: LockKey,
        /// How the task holds it.
        held: Mode,
        /// What it asks for.
        wanted: Mode,
    },

    /// The key cannot name a lock.
    #[error("invalid lock key `{key}`: {reason}")]
    #[non_exhaustive]
    InvalidKey {
        /// The key as [`LockKey`] shows it: escaped, and shortened if it is long.
        key: String,
        /// What is wrong with it and what to do.
        reason: String,
    },

    /// A setting is wrong: the store's URL, an environment variable, a ttl.
    #[error("dlock configuration, {setting}: {reason}")]
    #[non_exhaustive]
    Config {
        /// The setting or environment variable.
        setting: String,
        /// What is wrong with it and what to do.
        reason: String,
        /// What caused it, if something below did.
        source: Option<Source>,
    },

    /// The store, or the place of the call, cannot do what was asked.
    #[error("{subject}: {reason}")]
    #[non_exhaustive]
    Unsupported {
        /// What was being done, as a rule "lock `<key>`".
        subject: String,
        /// What is not supported and what to do.
        reason: String,
    },

    /// A lock was asked for before `dlock::init`, and outside of
    /// [`LockManager::scope`](crate::LockManager::scope). A spawned task is
    /// outside, unless its future went through
    /// [`in_lock_scope`](crate::LockScopeExt::in_lock_scope).
    #[error(
        "lock `{key}`: dlock is not initialised; call `dlock::init(config).await` at start-up, \
         or run inside `LockManager::scope`, which a spawned task leaves unless its future goes \
         through `in_lock_scope()`"
    )]
    #[non_exhaustive]
    NotInitialized {
        /// The key that was asked for.
        key: LockKey,
    },

    /// `dlock::init` was called a second time.
    #[error(
        "dlock is initialised already, and stays as it is; call `dlock::init` once at start-up, \
         or use `LockManager::connect` for a second store"
    )]
    AlreadyInitialized,

    /// A lock was asked for after `dlock::shutdown`.
    #[error("lock `{key}`: dlock is shut down; take no lock after `dlock::shutdown`")]
    #[non_exhaustive]
    ShutDown {
        /// The key that was asked for.
        key: LockKey,
    },
}

/// How a lease ended before its body did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The store says that somebody else holds the key, or nobody.
    #[error("the store no longer knows this holder")]
    Gone,
    /// It was not to be renewed (`renew = false`), and the work took longer
    /// than the ttl.
    #[error("it was fixed, and the work took longer than its ttl; raise the ttl")]
    Overran,
    /// It was renewed up to `max_hold` and no longer.
    #[error("it was held for its `max_hold`; raise that if the work may take longer")]
    MaxHold,
    /// No renewal was confirmed in time.
    #[error("its ttl passed without a confirmed renewal")]
    Expired,
}

impl LockError {
    /// What the store answered. The message already tells what the error
    /// tells, so the source is what lies below it.
    pub(crate) fn of_store(subject: String, store: &str, error: BackendError) -> Self {
        let reason = error.to_string();
        match error.kind() {
            BackendErrorKind::Unavailable => Self::Unavailable {
                subject,
                reason,
                source: error.into_cause(),
            },
            BackendErrorKind::Config => Self::Config {
                setting: format!("{store} store"),
                reason,
                source: error.into_cause(),
            },
            // Who asks for a lock is told `Self::Done` or `Self::TakenOut`, and nobody else
            // hears of it.
            BackendErrorKind::Unsupported | BackendErrorKind::Done | BackendErrorKind::TakenOut => {
                Self::Unsupported { subject, reason }
            }
        }
    }

    /// Whether the store did not allow it: its user needs another right there, such as one
    /// to the keys of dlock. Then this is a [`Config`](Self::Config), as a rule, or an
    /// [`Unavailable`](Self::Unavailable). A wrong password is not meant.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        let (Self::Config { source, .. } | Self::Unavailable { source, .. }) = self else {
            return false;
        };
        source.as_ref().is_some_and(|source| source.is::<Denied>())
    }

    pub(crate) fn config(setting: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Config {
            setting: setting.into(),
            reason: reason.into(),
            source: None,
        }
    }
}
