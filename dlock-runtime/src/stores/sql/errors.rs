//! Why a script failed, and what can be done then.

use std::time::{Duration, Instant};
use std::{fmt, io};

use super::database::{Database, Meaning, RetryPolicy};
use crate::backend::BackendError;
use crate::store::{Applied, Cause, Failure, Next};
use crate::stores::meaning;

pub(super) const FOREIGN_TOKEN: &str = "the row of this lock in the table dlock_lock holds a \
                                        number that dlock did not write; delete that row while \
                                        nobody holds the lock, and ask again; if that does not \
                                        help, dlock did not write the `floor` of dlock_meta \
                                        either: set it to the highest token that was given out";

/// A database, as messages name it: without a password.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) name: String,
    /// It is reached over a network, and by no file or Unix socket.
    pub(super) is_remote: bool,
    pub(super) request_timeout: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) retry: RetryPolicy,
    pub(super) cause: Cause,
    /// When it was sent; if it was not, when it was given up.
    pub(super) sent_at: Instant,
    pub(super) was_sent: bool,
    /// Statements may have been committed before the error, by this attempt or an earlier one.
    pub(super) may_be_done: bool,
}

impl Failed {
    /// The failure of a script that was sent, and has committed nothing before.
    pub(super) fn new(retry: RetryPolicy, cause: Cause, sent_at: Instant) -> Self {
        Self {
            retry,
            cause,
            sent_at,
            was_sent: true,
            may_be_done: false,
        }
    }

    /// The failure, for a call that does not wait again for a row that another session keeps.
    pub(super) fn without_kept(self) -> Failure {
        let is_kept = self.retry == RetryPolicy::Kept;
        let mut failure = Failure::from(self);
        if is_kept {
            failure.next = Next::Stop;
        }
        failure
    }
}

impl Endpoint {
    fn unavailable<D: Database>(&self, how: &str, advice: &str) -> BackendError {
        // A file is reached without a network, so it can only fail to answer.
        let how = if D::IS_FILE { "did not answer" } else { how };
        BackendError::unavailable(format!(
            "{self} {how} within {:?}; {advice}",
            self.request_timeout
        ))
    }

    /// The error of a script that was not answered in time.
    pub(super) fn silent<D: Database>(&self) -> BackendError {
        self.unavailable::<D>("did not answer", D::SILENCE_ADVICE)
    }

    /// The failure of a script for which no connection was free, or could be opened, in time.
    pub(super) fn not_reached<D: Database>(&self) -> Failed {
        let error = self.unavailable::<D>("could not be reached", D::UNREACHED_ADVICE);
        Failed {
            was_sent: false,
            ..Failed::new(RetryPolicy::Again, Cause::NotReached(error), Instant::now())
        }
    }

    /// The error for a row of a lock that another program has written.
    pub(super) fn foreign_token(&self) -> BackendError {
        meaning::foreign(self, FOREIGN_TOKEN)
    }

    /// The failure of a script over whose answer the driver has panicked.
    pub(super) fn unexpected_answer(&self) -> Failed {
        let error = BackendError::unavailable(format!(
            "{self} gave an answer that its driver cannot read; is there something else behind \
             the URL, or between?"
        ));
        Failed::new(RetryPolicy::Reconnect, Cause::Error(error), Instant::now())
    }

    /// The failure of a script to which the driver has returned this error.
    pub(super) fn failed<D: Database>(&self, error: sqlx::Error, sent_at: Instant) -> Failed {
        let meaning = D::meaning(&error).unwrap_or_else(|| other::<D>(&error));
        self.told(meaning, error, sent_at)
    }

    /// The failure of a script for which no connection could be opened: nothing was sent.
    pub(super) fn not_opened<D: Database>(&self, error: sqlx::Error) -> Failed {
        let now = Instant::now();
        let mut failed = match self.names_wrong_files(&error) {
            true => self.told(Meaning::config(D::TLS_ADVICE), error, now),
            false => self.failed::<D>(error, now),
        };
        if failed.retry != RetryPolicy::Stop {
            failed.retry = RetryPolicy::Again;
        }
        failed.was_sent = false;
        failed
    }

    /// Whether no connection could be opened since a certificate is not there, or is not trusted.
    /// (Of a Unix socket, the first means that the server does not run.)
    fn names_wrong_files(&self, error: &sqlx::Error) -> bool {
        let sqlx::Error::Io(error) = error else {
            return false;
        };
        match error.kind() {
            io::ErrorKind::NotFound => self.is_remote,
            // rustls uses this kind for a certificate that it refuses, and for an answer that is not
            // of its protocol: another kind of server may be there.
            io::ErrorKind::InvalidData => error.to_string().contains("certificate"),
            _ => false,
        }
    }

    fn told(&self, meaning: Meaning, error: sqlx::Error, sent_at: Instant) -> Failed {
        let told = meaning.error(self, &error).with_cause(error);
        Failed::new(meaning.retry, Cause::Error(told), sent_at)
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
            _ => Next::Pause,
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

/// The meaning of an error that does not come from the database itself.
fn other<D: Database>(error: &sqlx::Error) -> Meaning {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            Meaning::unavailable(RetryPolicy::Reconnect, D::UNREACHED_ADVICE)
        }
        sqlx::Error::Tls(why) if why.to_string().contains("built without TLS") => {
            Meaning::config("turn on dlock's cargo feature `tls`")
        }
        sqlx::Error::Tls(_) => Meaning::config(D::TLS_ADVICE),
        sqlx::Error::Configuration(_) => Meaning::config("correct its URL"),
        _ => Meaning::unavailable(RetryPolicy::Stop, ""),
    }
}
