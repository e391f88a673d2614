//! What etcd and its client say, in the words of a [`BackendError`]: what
//! happened, where, and what to do about it.

use std::time::Duration;

use etcd_client::Error;

use crate::backend::{BackendError, BackendErrorKind};
use crate::store::{Applied, Cause, Failure, Next};

/// What can be done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Ask again, another member if there is one.
    AskElsewhere,
    /// Log in again, and ask again.
    LogIn,
    /// The lease has ended: ask again with another.
    LeaseNotFound,
    /// Nothing that dlock could do.
    Refused,
}

/// A request that came to nothing.
pub(super) struct Failed {
    pub(super) verdict: Verdict,
    failure: Failure,
}

impl Failed {
    pub(super) fn new(verdict: Verdict, error: BackendError, applied: Applied) -> Self {
        Self::of(verdict, Cause::Error(error), applied)
    }

    /// No answer has come.
    pub(super) fn silent(applied: Applied) -> Self {
        Self::of(Verdict::AskElsewhere, Cause::Silence, applied)
    }

    /// There was no time to ask.
    pub(super) fn not_sent() -> Self {
        Self::silent(Applied::No)
    }

    fn of(verdict: Verdict, cause: Cause, applied: Applied) -> Self {
        let next = match verdict {
            Verdict::AskElsewhere | Verdict::LogIn => Next::Pause,
            Verdict::LeaseNotFound | Verdict::Refused => Next::Stop,
        };
        Self {
            verdict,
            failure: Failure {
                cause,
                next,
                applied,
            },
        }
    }

    /// It may have been done, or may be yet.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.failure.applied != Applied::No
    }

    /// Of a request that changes nothing, or leaves nothing.
    pub(super) fn of_a_read(mut self) -> Failure {
        self.failure.applied = Applied::No;
        self.failure
    }
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        failed.failure
    }
}

/// The server's messages are the same in every version and language; its codes
/// are not, as calls that it passes on to itself lose them.
/// (`api/v3rpc/rpctypes/error.go` in etcd.)
pub(super) fn verdict(error: &Error) -> Verdict {
    let Error::GRpcStatus(status) = error else {
        return match error {
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                Verdict::Refused
            }
            _ => Verdict::AskElsewhere,
        };
    };
    let message = status.message();
    let says = |text: &str| message.contains(text);
    if says("requested lease not found") {
        Verdict::LeaseNotFound
    } else if says("invalid auth token") || says("revision of auth store is old") {
        Verdict::LogIn
    } else if refusal(message).is_some() {
        Verdict::Refused
    } else {
        Verdict::AskElsewhere
    }
}

/// What to do about what the server will always refuse.
fn refusal(message: &str) -> Option<&'static str> {
    let says = |text: &str| message.contains(text);
    if says("authentication failed") {
        Some("check the user and the password in the URL")
    } else if says("user name is empty") {
        Some("this server wants a user: etcd://user:password@host")
    } else if says("authentication is not enabled") {
        Some("this server knows no users: leave them out of the URL")
    } else if says("permission denied") {
        Some(
            "give this user's role reading and writing of all keys that begin with the prefix \
             (`etcdctl role grant-permission ROLE readwrite dlock/ --prefix`)",
        )
    } else if says("too large") || says("is too long") {
        Some("use a shorter key")
    } else if says("too many operations") {
        Some("start the server with --max-txn-ops=128 or more, as is its default")
    } else {
        None
    }
}

/// What the server or the client said about a request.
pub(super) fn described(place: &str, error: &Error) -> BackendError {
    match error {
        Error::GRpcStatus(status) => {
            let message = status.message();
            let said = format!("{place}: {message}");
            match refusal(message) {
                Some(advice) => {
                    BackendError::new(BackendErrorKind::Config, format!("{said}; {advice}"))
                }
                None if message.contains("database space exceeded") => BackendError::unavailable(
                    format!("{said}; compact and defragment it, then `etcdctl alarm disarm`"),
                ),
                None => BackendError::unavailable(with_causes(said, status)),
            }
        }
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            BackendError::new(BackendErrorKind::Config, format!("{place}: {error}"))
        }
        error => BackendError::unavailable(format!("{place}: {error}")),
    }
}

/// A status of the client's own says little without what is behind it.
fn with_causes(mut said: String, error: &dyn std::error::Error) -> String {
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        cause = error.source();
    }
    said
}

pub(super) fn silent(place: &str, waited: Duration) -> BackendError {
    BackendError::unavailable(format!(
        "{place} has not answered within {waited:?}; check that more than half of its members \
         run and can be reached"
    ))
}

pub(super) fn nonsense(place: &str) -> BackendError {
    BackendError::unavailable(format!(
        "{place} gave an answer that is none to what it was asked; check that it is an etcd \
         server, 3.4 or later"
    ))
}
