//! The error behind an error, which a report shows only once.

use std::error::Error as StdError;
use std::sync::Arc;

/// The error behind one of dlock's, usually from the store's client. It is shared, so that every
/// waiter of one failed request gets it.
#[derive(Clone, Debug)]
pub struct ErrorCause {
    error: Arc<dyn StdError + Send + Sync + 'static>,
    /// Whether the message of the outer error contains its text.
    is_in_message: bool,
    is_denial: bool,
}

/// A store denied something to its user, without an error of its own.
#[derive(Debug, thiserror::Error)]
#[error("the store does not allow it to this user")]
struct Denied;

impl ErrorCause {
    /// A cause whose text is in the message.
    pub(crate) fn in_message(error: impl StdError + Send + Sync + 'static) -> Self {
        Self {
            error: Arc::new(error),
            is_in_message: true,
            is_denial: false,
        }
    }

    /// A cause whose text is not in the message.
    pub(crate) fn not_in_message(error: impl StdError + Send + Sync + 'static) -> Self {
        Self {
            is_in_message: false,
            ..Self::in_message(error)
        }
    }

    /// Marks the cause as a denial by the store.
    pub(super) fn denied(cause: Option<Self>) -> Self {
        Self {
            is_denial: true,
            ..cause.unwrap_or_else(|| Self::in_message(Denied))
        }
    }

    /// The error, for `downcast_ref`.
    #[must_use]
    pub fn error(&self) -> &(dyn StdError + 'static) {
        &*self.error
    }

    /// What follows the message in a report of the whole chain.
    pub(super) fn source(&self) -> Option<&(dyn StdError + 'static)> {
        (!self.is_in_message).then(|| self.error())
    }

    pub(super) fn is_denial(&self) -> bool {
        self.is_denial
    }
}
