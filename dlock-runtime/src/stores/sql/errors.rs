//! Why a script has failed, and what can be done then.

use std::fmt;
use std::time::{Duration, Instant};

use super::database::{Database, Meaning, RetryPolicy};
use crate::backend::BackendError;
use crate::store::{Applied, Cause, Failure, Next};

pub(super) const FOREIGN_TOKEN: &str = "a number in the row of this lock in the table \
                                        dlock_lock was not written by dlock; delete that row \
                                        while nobody holds the lock, and ask again; if that does \
                                        not help, the `floor` of dlock_meta was not either: set \
                                        it to the highest token that was given out";

/// A database as it is named in messages, where no password is.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) name: String,
    pub(super) request_timeout: Duration,
}

/// Why a script has failed.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) retry: RetryPolicy,
    pub(super) cause: Cause,
    /// When it was sent, if it was.
    pub(super) sent_at: Instant,
    pub(super) was_sent: bool,
    /// It was sent before, and an error that came then does not say that nothing was done.
    pub(super) may_be_done: bool,
}

impl Endpoint {
    fn is_out<D: Database>(&self, how: &str, advice: &str) -> BackendError {
        // What is no server is always reached, and does not answer.
        let how = if D::IS_FILE { "did not answer" } else { how };
        BackendError::unavailable(format!(
            "{self} {how} within {:?}; {advice}",
            self.request_timeout
        ))
    }

    /// A script was not answered in time.
    pub(super) fn is_silent<D: Database>(&self) -> BackendError {
        self.is_out::<D>("did not answer", D::SILENCE_ADVICE)
    }

    /// No connection was to be had in time.
    pub(super) fn not_reached<D: Database>(&self) -> Failed {
        let error = self.is_out::<D>("could not be reached", D::UNREACHED_ADVICE);
        Failed {
            retry: RetryPolicy::Again,
            cause: Cause::NotReached(error),
            sent_at: Instant::now(),
            was_sent: false,
            may_be_done: false,
        }
    }

    /// A row of a lock was written by somebody else.
    pub(super) fn foreign_token(&self) -> BackendError {
        BackendError::unavailable(format!("{self}: {FOREIGN_TOKEN}"))
    }

    /// The driver could not read an answer at all.
    pub(super) fn nonsense(&self) -> Failed {
        let error = BackendError::unavailable(format!(
            "{self} gave an answer that its driver cannot read; is there something else behind \
             the URL, or between?"
        ));
        Failed {
            retry: RetryPolicy::Reconnect,
            cause: Cause::Error(error),
            sent_at: Instant::now(),
            was_sent: true,
            may_be_done: false,
        }
    }

    /// What an error means that came instead of an answer.
    pub(super) fn failed<D: Database>(&self, error: sqlx::Error, sent_at: Instant) -> Failed {
        let meaning = D::meaning(&error).unwrap_or_else(|| other::<D>(&error));
        let told = meaning.error(self, &error);
        Failed {
            retry: meaning.retry,
            cause: Cause::Error(told.with_cause(error)),
            sent_at,
            was_sent: true,
            may_be_done: false,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        let next = match failed.retry {
            RetryPolicy::Stop => Next::Stop,
            RetryPolicy::Again | RetryPolicy::Kept | RetryPolicy::Reconnect => Next::Pause,
        };
        let sent_at = failed.sent_at;
        let applied = match failed.may_be_done || failed.retry == RetryPolicy::Reconnect {
            true => Applied::Unknown { sent_at },
            false => Applied::No,
        };
        let cause = failed.cause;
        Self {
            cause,
            next,
            applied,
        }
    }
}

/// What the database has not said itself.
fn other<D: Database>(error: &sqlx::Error) -> Meaning {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            Meaning::unavailable(RetryPolicy::Reconnect, D::UNREACHED_ADVICE)
        }
        sqlx::Error::Tls(_) => Meaning::config(D::TLS_ADVICE),
        _ => Meaning::unavailable(RetryPolicy::Stop, ""),
    }
}
