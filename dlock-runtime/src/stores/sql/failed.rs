//! Why a script has failed, and what can be done then.

use super::database::Database;
use super::errors::{Endpoint, Meaning, RetryPolicy};
use crate::store::Cause;

/// Why a script has failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) retry: RetryPolicy,
    pub(super) cause: Cause,
}

impl Failed {
    pub(super) fn silent() -> Self {
        Self {
            retry: RetryPolicy::Reconnect,
            cause: Cause::Silence,
        }
    }

    /// No connection was to be had in time.
    pub(super) fn not_reached<D: Database>(endpoint: &Endpoint) -> Self {
        Self {
            retry: RetryPolicy::Again,
            cause: Cause::NotReached(D::unreachable(endpoint)),
        }
    }

    /// What an error means that came instead of an answer.
    pub(super) fn of<D: Database>(endpoint: &Endpoint, error: sqlx::Error) -> Self {
        let meaning = D::meaning(&error).unwrap_or_else(|| other::<D>(&error));
        let told = meaning.told(endpoint, &error);
        Self {
            retry: meaning.retry,
            cause: Cause::Error(told.with_source(error)),
        }
    }

    /// The same where the script was not sent.
    pub(super) fn before_it_was_sent(mut self) -> Self {
        if self.retry != RetryPolicy::Stop {
            self.retry = RetryPolicy::Again;
        }
        self
    }
}

/// What the database has not said itself.
fn other<D: Database>(error: &sqlx::Error) -> Meaning {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            Meaning::unavailable(
                RetryPolicy::Reconnect,
                "check that it runs and that the URL names its host and port",
            )
        }
        sqlx::Error::Tls(_) => Meaning::config(D::TLS_ADVICE),
        _ => Meaning::unavailable(RetryPolicy::Stop, ""),
    }
}
