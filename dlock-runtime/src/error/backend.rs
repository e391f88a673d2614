//! What a store or its client could not do, as the layers above hear of it.

use std::error::Error as StdError;
use std::sync::Arc;

/// The cause behind an error, shared so that every waiter of one failed
/// request can be told of it.
pub type Source = Arc<dyn StdError + Send + Sync + 'static>;

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct BackendError {
    kind: BackendErrorKind,
    message: String,
    source: Option<Source>,
    denied: bool,
}

/// Stands above the cause of an error, where the store does not let its user.
#[derive(Debug, thiserror::Error)]
#[error("the store does not allow it to this user")]
pub(super) struct Denied(#[source] Option<Below>);

/// A cause that others have too.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Below(Source);

/// What a caller can do about a [`BackendError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store was not reached, did not answer in time, or refused for now.
    Unavailable,
    /// The store was told something it will always refuse: a wrong password, a
    /// setting that is out of its range.
    Config,
    /// The store cannot do this.
    Unsupported,
    /// Nobody gets the lock for now: its body was to run once, and the store remembers
    /// that it has been done.
    Done,
    /// Somebody has taken the request out of the queue of the lock.
    TakenOut,
}

impl BackendError {
    /// The store was not reached or did not answer.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(BackendErrorKind::Unavailable, message)
    }

    /// The body was to run once, and has been done.
    #[must_use]
    pub fn done() -> Self {
        let message =
            "it has been done, and is remembered; wait, or `forget` it to have it run again";
        Self::new(BackendErrorKind::Done, message)
    }

    /// Somebody has taken the request out of the queue.
    #[must_use]
    pub fn taken_out() -> Self {
        let message = "somebody has taken this request out of the queue; ask again if the lock is \
                       still needed";
        Self::new(BackendErrorKind::TakenOut, message)
    }

    /// The store ends the leases of nobody but its own holders.
    pub(crate) fn cannot_break(store: &str) -> Self {
        let message = format!(
            "the {store} store cannot break a lock; end the process that holds it, or wait until \
             its lease ends"
        );
        Self::new(BackendErrorKind::Unsupported, message)
    }

    /// The store takes nobody out of its queue.
    pub(crate) fn keeps_its_waiters(store: &str) -> Self {
        let message = format!(
            "the {store} store cannot take a waiter out of its queue; end the process that waits"
        );
        Self::new(BackendErrorKind::Unsupported, message)
    }

    /// The store leaves no marks.
    pub(crate) fn remembers_nothing(store: &str) -> Self {
        let message = format!("the {store} store has no `once`, and so nothing to forget");
        Self::new(BackendErrorKind::Unsupported, message)
    }

    /// An error of this kind. The message says the setting or key, what
    /// happened and what to do, and never a password.
    #[must_use]
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
            denied: false,
        }
    }

    /// Says that the store does not allow this to its user, who needs another right there.
    /// [`LockError::is_denied`](crate::LockError::is_denied) tells.
    #[must_use]
    pub fn denied(mut self) -> Self {
        self.denied = true;
        self
    }

    #[cfg(feature = "sqlx")]
    pub(crate) fn is_denied(&self) -> bool {
        self.denied
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.caused_by(Arc::new(source))
    }

    /// Keeps a cause that several errors have.
    pub(crate) fn caused_by(mut self, source: Source) -> Self {
        self.source = Some(source);
        self
    }

    pub(super) fn into_cause(self) -> Option<Source> {
        match self.denied {
            true => Some(Arc::new(Denied(self.source.map(Below)))),
            false => self.source,
        }
    }

    /// What can be done about it.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }
}
