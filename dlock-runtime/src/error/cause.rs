//! The error behind an error, which a reader is told once.

use std::error::Error as StdError;
use std::sync::Arc;

/// The error behind one of dlock's: that of the store's client, as a rule. It is shared, so
/// that every waiter of one failed request can be told of it.
#[derive(Clone, Debug)]
pub struct ErrorCause {
    error: Arc<dyn StdError + Send + Sync + 'static>,
    /// The message of the error before it has its text.
    is_told: bool,
    is_denial: bool,
}

/// Of a store that does not let its user, and has no error for that.
#[derive(Debug, thiserror::Error)]
#[error("the store does not allow it to this user")]
struct Denied;

impl ErrorCause {
    /// One whose text the message has.
    pub(crate) fn told(error: impl StdError + Send + Sync + 'static) -> Self {
        Self {
            error: Arc::new(error),
            is_told: true,
            is_denial: false,
        }
    }

    /// One whose text it does not have.
    pub(crate) fn untold(error: impl StdError + Send + Sync + 'static) -> Self {
        Self {
            is_told: false,
            ..Self::told(error)
        }
    }

    /// The store does not let its user.
    pub(super) fn denied(cause: Option<Self>) -> Self {
        Self {
            is_denial: true,
            ..cause.unwrap_or_else(|| Self::told(Denied))
        }
    }

    /// The error, to be looked into with `downcast_ref`.
    #[must_use]
    pub fn error(&self) -> &(dyn StdError + 'static) {
        &*self.error
    }

    /// What comes behind the message in a report of the whole chain.
    pub(super) fn source(&self) -> Option<&(dyn StdError + 'static)> {
        (!self.is_told).then(|| self.error())
    }

    pub(super) fn is_denial(&self) -> bool {
        self.is_denial
    }
}
