//! What a store or its client could not do, as reported to the layers above.

use std::error::Error as StdError;
use std::fmt;

use super::ErrorCause;

/// Why a store did not do what was asked of it.
#[derive(Clone, Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    message: String,
    cause: Option<ErrorCause>,
    denied: bool,
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for BackendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_ref().and_then(ErrorCause::source)
    }
}

/// What a caller can do about a [`BackendError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The store was not reached, did not answer in time, or refused for now.
    Unavailable,
    /// The store was given something that it will always refuse: a wrong password, a setting that
    /// is out of range. Or it has a value where dlock keeps its own, and dlock did not write it.
    Config,
    /// The store cannot do this.
    Unsupported,
    /// Nobody gets the lock for now: its body was to run once, and the store remembers that it has
    /// been done.
    Done,
    /// Somebody has removed the request from the queue of the lock.
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

    /// Somebody has removed the request from the queue.
    #[must_use]
    pub fn taken_out() -> Self {
        let message = "somebody has taken this request out of the queue; ask again if the lock is \
                       still needed";
        Self::new(BackendErrorKind::TakenOut, message)
    }

    /// What the store gave had ended by the time of its answer, each time.
    pub(crate) fn lost_at_once() -> Self {
        Self::unavailable(
            "what it gave has ended at once, again and again; check its leases or sessions, and \
             whether this process gets enough time to run",
        )
    }

    /// The store can only end the leases of its own holders.
    pub(crate) fn cannot_break<'a>(store: impl Into<Option<&'a str>>) -> Self {
        let what = "cannot break a lock; end the process that holds it, or wait until its lease \
                    ends";
        Self::unsupported(store.into(), what)
    }

    /// The store cannot remove anybody from its queue.
    pub(crate) fn cannot_remove_waiters<'a>(store: impl Into<Option<&'a str>>) -> Self {
        let what = "cannot take a waiter out of its queue; end the process that waits";
        Self::unsupported(store.into(), what)
    }

    /// The store leaves no marks.
    pub(crate) fn cannot_forget<'a>(store: impl Into<Option<&'a str>>) -> Self {
        Self::unsupported(store.into(), "has no `once`, and so nothing to forget")
    }

    /// The store cannot raise its fencing tokens.
    pub(crate) fn cannot_raise_tokens<'a>(store: impl Into<Option<&'a str>>, why: &str) -> Self {
        let what = format_args!(
            "cannot lift its fencing tokens: {why}; leave `token_floor` out, and let what compares \
             them forget those of the store before"
        );
        Self::unsupported(store.into(), what)
    }

    fn unsupported(store: Option<&str>, what: impl fmt::Display) -> Self {
        let message = format!("{} {what}", the_store(store));
        Self::new(BackendErrorKind::Unsupported, message)
    }

    /// An error of this kind. The message names the setting or key, what happened and what to do.
    /// It must never contain a password.
    #[must_use]
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            cause: None,
            denied: false,
        }
    }

    /// Marks the error as a denial: the store's user lacks a right there.
    /// [`LockError::is_denied`](crate::LockError::is_denied) reports this.
    #[must_use]
    pub fn denied(mut self) -> Self {
        self.denied = true;
        self
    }

    pub(crate) fn is_denied(&self) -> bool {
        self.denied
    }

    /// Attaches a cause that the message does not mention: [`source`](StdError::source) returns it,
    /// so that a report of the whole chain shows it once.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # use std::error::Error;
    /// use dlock::backend::BackendError;
    ///
    /// let cause = std::io::Error::other("the disk is full");
    /// let error = BackendError::unavailable("the directory cannot be written").with_source(cause);
    /// assert_eq!(error.source().expect("kept").to_string(), "the disk is full");
    ///
    /// let cause = std::io::Error::other("the disk is full");
    /// let error = BackendError::unavailable(format!("{cause}; make room")).with_cause(cause);
    /// assert!(error.source().is_none(), "the message has it");
    /// assert!(error.cause().is_some(), "it is kept all the same");
    /// ```
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.caused_by(ErrorCause::not_in_message(source))
    }

    /// Attaches a cause that the message mentions already, as a log line should:
    /// [`cause`](Self::cause) returns it, and [`source`](StdError::source) does not.
    #[must_use]
    pub fn with_cause(self, cause: impl StdError + Send + Sync + 'static) -> Self {
        self.caused_by(ErrorCause::in_message(cause))
    }

    /// Attaches a cause that several errors share.
    pub(crate) fn caused_by(mut self, cause: ErrorCause) -> Self {
        self.cause = Some(cause);
        self
    }

    pub(crate) fn into_cause(self) -> Option<ErrorCause> {
        match self.denied {
            true => Some(ErrorCause::denied(self.cause)),
            false => self.cause,
        }
    }

    /// The underlying error, whether the message contains it or not.
    #[must_use]
    pub fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_ref().map(ErrorCause::error)
    }

    /// What can be done about it.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }
}

/// The store as the subject of a sentence. Some callers do not know its name.
fn the_store(name: Option<&str>) -> String {
    match name {
        Some(name) => format!("the {name} store"),
        None => "this store".to_owned(),
    }
}
