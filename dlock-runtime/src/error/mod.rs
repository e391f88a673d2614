//! The only error type of the public interface, and the error of a store below it.

mod backend;
mod cause;

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

pub use self::backend::{BackendError, BackendErrorKind};
pub use self::cause::ErrorCause;
use crate::backend::Mode;
use crate::key::LockKey;
use crate::token::FencingToken;

/// Why a lock was not granted, or is no longer held.
///
/// Every variant names the key or setting, what happened and what to do. `Busy` and `Timeout` mean
/// that somebody else has the lock; `Done` that its work has been done; `TakenOut` that an operator
/// ended the wait; `Unavailable` that the store did not answer; `Lost` that the body began but its
/// lease ended.
///
/// The message includes that of the cause, so one log line is enough. [`source`](StdError::source)
/// then does not return the cause again, so a report of the whole chain (`{:#}` of `anyhow`) shows
/// it once. [`cause`](Self::cause) returns it in any case.
///
/// With feature `axum` it is a response.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else holds the lock, and the caller chose not to wait.
    #[non_exhaustive]
    Busy {
        /// The key that is held.
        key: LockKey,
    },

    /// The work under this key has been done, here or elsewhere: a body with `once` has returned
    /// `Ok`, or a guard has reported it. That is remembered for the time that this call gave. Until
    /// then nobody gets the lock, whether the request has `once` or not.
    #[non_exhaustive]
    Done {
        /// The key whose body has been done.
        key: LockKey,
    },

    /// The caller waited for the lock, and an operator removed it from the queue
    /// ([`LockManager::break_waiter`](crate::LockManager::break_waiter)). The other tasks of its
    /// process that waited in the same place get the same error.
    #[non_exhaustive]
    TakenOut {
        /// The key that was waited for.
        key: LockKey,
    },

    /// The lock was not granted within the caller's timeout.
    #[non_exhaustive]
    Timeout {
        /// The key that was waited for.
        key: LockKey,
        /// The timeout that has passed.
        waited: Duration,
    },

    /// The lease ended while the body ran, or was taken away: the work may overlap with that of
    /// another holder.
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
    #[non_exhaustive]
    Unavailable {
        /// What was being done, usually "lock `<key>`".
        subject: String,
        /// What the store or its client said, and what to do.
        reason: String,
        /// The underlying error, if there is one. See [`LockError::cause`].
        cause: Option<ErrorCause>,
    },

    /// Waiting could never end: the caller's own task holds the key for reading or by a permit and
    /// asks to write, or holds it for reading and asks for a permit.
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
    #[non_exhaustive]
    InvalidKey {
        /// The key as [`LockKey`] shows it: escaped, and shortened if it is long.
        key: String,
        /// What is wrong with it and what to do.
        reason: String,
    },

    /// A setting is wrong: the store's URL, an environment variable, a ttl. Or the store has a
    /// value where dlock keeps its own, and dlock did not write it.
    #[non_exhaustive]
    Config {
        /// The setting or environment variable, or the store and what it was asked for.
        setting: String,
        /// What is wrong with it and what to do.
        reason: String,
        /// The underlying error, if there is one. See [`LockError::cause`].
        cause: Option<ErrorCause>,
    },

    /// The store, or the place of the call, cannot do what was asked.
    #[non_exhaustive]
    Unsupported {
        /// What was being done, usually "lock `<key>`".
        subject: String,
        /// What is not supported and what to do.
        reason: String,
    },

    /// A lock was requested before `dlock::init`, and outside of
    /// [`LockManager::scope`](crate::LockManager::scope). A spawned task is outside, unless its
    /// future went through [`in_lock_scope`](crate::LockScopeExt::in_lock_scope).
    #[non_exhaustive]
    NotInitialized {
        /// The key that was requested.
        key: LockKey,
    },

    /// `dlock::init` was called a second time.
    AlreadyInitialized,

    /// A lock was requested after `dlock::shutdown`.
    #[non_exhaustive]
    ShutDown {
        /// The key that was requested.
        key: LockKey,
    },
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { key } => write!(
                f,
                "lock `{key}` is held by somebody else; try again later, or wait with `timeout`"
            ),
            Self::Done { key } => write!(
                f,
                "lock `{key}`: what it protects has been done, and `once` remembers that; there is \
                 nothing left to do, or call `LockManager::forget` to have it done again"
            ),
            Self::TakenOut { key } => write!(
                f,
                "lock `{key}`: an operator has taken this request out of the queue; ask again if \
                 the lock is still needed"
            ),
            Self::Timeout { key, waited } => write!(
                f,
                "lock `{key}` could not be taken within {waited:?}; raise the timeout, or look at what \
                 holds it with `LockManager::inspect`"
            ),
            Self::Lost { key, token, reason } => write!(
                f,
                "the lease on lock `{key}` was lost (token {token}): {reason}; what it protected \
                 may have been taken over, so check before you repeat the work"
            ),
            Self::Unavailable {
                subject, reason, ..
            } => write!(f, "{subject}: the store is unavailable: {reason}"),
            Self::WouldDeadlock { key, held, wanted } => {
                let (held, wanted) = (held.held(), wanted.held());
                write!(
                    f,
                    "lock `{key}`: this task holds it {held} and asks for it {wanted}, which would \
                     wait for itself; take it {wanted} from the start"
                )
            }
            Self::InvalidKey { key, reason } => write!(f, "invalid lock key `{key}`: {reason}"),
            Self::Config {
                setting, reason, ..
            } => write!(f, "dlock configuration, {setting}: {reason}"),
            Self::Unsupported { subject, reason } => write!(f, "{subject}: {reason}"),
            Self::NotInitialized { key } => write!(
                f,
                "lock `{key}`: dlock is not initialised; call `dlock::init(config).await` at \
                 start-up, or run inside `LockManager::scope`, which a spawned task leaves unless \
                 its future goes through `in_lock_scope()`"
            ),
            Self::AlreadyInitialized => f.write_str(
                "dlock is initialised already, and stays as it is; call `dlock::init` once at \
                 start-up, or use `LockManager::connect` for a second store",
            ),
            Self::ShutDown { key } => write!(
                f,
                "lock `{key}`: dlock is shut down; take no lock after `dlock::shutdown`"
            ),
        }
    }
}

impl StdError for LockError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.kept_cause().and_then(ErrorCause::source)
    }
}

/// How a lease ended before its body did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The store says that somebody else holds the key, or nobody.
    #[error("the store no longer knows this holder")]
    Gone,
    /// The lease was not renewed (`renew = false`), and the work took longer than the ttl.
    #[error("it was fixed, and the work took longer than its ttl; raise the ttl")]
    Overran,
    /// The lease was renewed up to `max_hold` and no longer.
    #[error("it was held for its `max_hold`; raise that if the work may take longer")]
    MaxHold,
    /// No renewal was confirmed in time.
    #[error("its ttl passed without a confirmed renewal")]
    Expired,
}

impl LockError {
    /// The error for an answer of the store. The message already contains that of `error`, so the
    /// cause is what lies below `error`.
    pub(crate) fn of_store(subject: String, store: &str, error: BackendError) -> Self {
        let reason = error.to_string();
        match error.kind() {
            BackendErrorKind::Unavailable => Self::Unavailable {
                subject,
                reason,
                cause: error.into_cause(),
            },
            BackendErrorKind::Config => Self::Config {
                setting: format!("{store} store, {subject}"),
                reason,
                cause: error.into_cause(),
            },
            // A request for a lock gets `Self::Done` or `Self::TakenOut` instead; no other
            // operation returns these two kinds.
            BackendErrorKind::Unsupported | BackendErrorKind::Done | BackendErrorKind::TakenOut => {
                Self::Unsupported { subject, reason }
            }
        }
    }

    /// Whether the store denied this: its user lacks a right there, such as one to the keys of
    /// dlock. Then this is usually a [`Config`](Self::Config), or an
    /// [`Unavailable`](Self::Unavailable). A wrong password does not count.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.kept_cause().is_some_and(ErrorCause::is_denial)
    }

    /// The error behind this one, usually from the store's client, for `downcast_ref`. The message
    /// usually contains its text, and so [`source`](StdError::source) does not return it.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # fn told(error: &dlock::LockError) {
    /// if let Some(cause) = error.cause() {
    ///     println!("{cause:?}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.kept_cause().map(ErrorCause::error)
    }

    /// The key of the lock that the call did not get or lost, if the error is about one lock that
    /// could be asked for: of `Busy`, `Done`, `TakenOut`, `Timeout`, `Lost`, `WouldDeadlock`,
    /// `NotInitialized` and `ShutDown`. `None` of all others: they have the key only in their text,
    /// if at all.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let _guard = manager.lock("stock:42").acquire().await?;
    /// let Err(error) = manager.lock("stock:42").try_acquire().await else {
    ///     unreachable!("it is held")
    /// };
    /// assert_eq!(error.key().expect("it names a lock"), "stock:42");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn key(&self) -> Option<&LockKey> {
        match self {
            Self::Busy { key }
            | Self::Done { key }
            | Self::TakenOut { key }
            | Self::Timeout { key, .. }
            | Self::Lost { key, .. }
            | Self::WouldDeadlock { key, .. }
            | Self::NotInitialized { key }
            | Self::ShutDown { key } => Some(key),
            Self::Unavailable { .. }
            | Self::InvalidKey { .. }
            | Self::Config { .. }
            | Self::Unsupported { .. }
            | Self::AlreadyInitialized => None,
        }
    }

    fn kept_cause(&self) -> Option<&ErrorCause> {
        match self {
            Self::Config { cause, .. } | Self::Unavailable { cause, .. } => cause.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn config(setting: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Config {
            setting: setting.into(),
            reason: reason.into(),
            cause: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_one_lock_know_its_key() {
        let key = || LockKey::from("stock:42");
        let of_a_key = [
            LockError::Busy { key: key() },
            LockError::Done { key: key() },
            LockError::TakenOut { key: key() },
            LockError::Timeout {
                key: key(),
                waited: Duration::from_secs(1),
            },
            LockError::Lost {
                key: key(),
                token: FencingToken::from(7),
                reason: LossReason::Gone,
            },
            LockError::WouldDeadlock {
                key: key(),
                held: Mode::Read,
                wanted: Mode::Write,
            },
            LockError::NotInitialized { key: key() },
            LockError::ShutDown { key: key() },
        ];
        for error in of_a_key {
            assert_eq!(error.key(), Some(&key()), "{error:?}");
        }
        let invalid = LockError::InvalidKey {
            key: "stock:42".to_owned(),
            reason: "it is too long".to_owned(),
        };
        for error in [invalid, LockError::AlreadyInitialized] {
            assert_eq!(error.key(), None, "{error:?}");
        }
    }
}
