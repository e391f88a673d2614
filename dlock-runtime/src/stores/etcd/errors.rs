//! What etcd and its client say, in the words of a [`BackendError`]: what
//! happened, where, and what to do about it.

use std::time::Duration;

use etcd_client::Error;

use crate::backend::BackendError;
use crate::key::Shown;
use crate::store::{Applied, Cause, Failure, Next};
use crate::stores::meaning::Meaning;

/// What can be done about an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ErrorClass {
    /// Ask again, another member if there is one.
    AskElsewhere,
    /// Log in again, and ask again.
    LogIn,
    /// The lease has ended: ask again with another.
    LeaseNotFound,
    /// There is a lease with this number already.
    LeaseExists,
    /// Nothing that dlock could do.
    #[default]
    Refused,
}

/// A request that came to nothing.
#[derive(Clone)]
pub(crate) struct Failed {
    pub(super) class: ErrorClass,
    pub(super) cause: Cause,
    pub(super) applied: Applied,
}

impl From<Failed> for Failure {
    fn from(failed: Failed) -> Self {
        Self {
            cause: failed.cause,
            next: match failed.class {
                ErrorClass::AskElsewhere | ErrorClass::LogIn => Next::Pause,
                ErrorClass::LeaseNotFound | ErrorClass::LeaseExists | ErrorClass::Refused => {
                    Next::Stop
                }
            },
            applied: failed.applied,
        }
    }
}

pub(super) fn classify(error: &Error) -> ErrorClass {
    meaning(error).retry
}

/// What the server or the client said about a request.
pub(super) fn described(place: &str, error: &Error) -> BackendError {
    let meaning = meaning(error);
    let said = match error {
        Error::GRpcStatus(status) if meaning.advice.is_empty() => {
            with_causes(status.message().to_owned(), status)
        }
        Error::GRpcStatus(status) => status.message().to_owned(),
        error => error.to_string(),
    };
    meaning.error(place, said)
}

/// The server's messages are the same in every version and language; its codes
/// are not, as calls that it passes on to itself lose them.
/// (`api/v3rpc/rpctypes/error.go` in etcd.)
fn meaning(error: &Error) -> Meaning<ErrorClass> {
    use ErrorClass::{AskElsewhere, LeaseExists, LeaseNotFound, LogIn};
    let message = match error {
        Error::GRpcStatus(status) => status.message(),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            return Meaning::config("");
        }
        // The client's own words.
        Error::LeaseKeepAliveError(text) if text.contains("not found") => {
            return Meaning::unavailable(LeaseNotFound, "");
        }
        _ => "",
    };
    let too_long = Meaning::config("use a shorter key");
    let table = [
        (
            "requested lease not found",
            Meaning::unavailable(LeaseNotFound, ""),
        ),
        (
            "lease already exists",
            Meaning::unavailable(LeaseExists, ""),
        ),
        ("invalid auth token", Meaning::unavailable(LogIn, "")),
        (
            "revision of auth store is old",
            Meaning::unavailable(LogIn, ""),
        ),
        (
            "authentication failed",
            Meaning::config("check the user and the password in the URL"),
        ),
        (
            "user name is empty",
            Meaning::config("this server wants a user: etcd://user:password@host"),
        ),
        (
            "authentication is not enabled",
            Meaning::config("this server knows no users: leave them out of the URL"),
        ),
        (
            "permission denied",
            Meaning::denied(
                "give this user's role reading and writing of all keys that begin with the prefix \
                 (`etcdctl role grant-permission ROLE readwrite dlock/ --prefix`)",
            ),
        ),
        ("too large", too_long),
        ("is too long", too_long),
        (
            "too many operations",
            Meaning::config("start the server with --max-txn-ops=128 or more, as is its default"),
        ),
        (
            "database space exceeded",
            Meaning::unavailable(
                AskElsewhere,
                "compact and defragment it, then `etcdctl alarm disarm`",
            ),
        ),
    ];
    let mut rows = table.into_iter();
    let row = rows.find(|(text, _)| message.contains(text));
    row.map_or(Meaning::unavailable(AskElsewhere, ""), |(_, meaning)| {
        meaning
    })
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

/// Something stands where a mark belongs.
pub(super) fn foreign(place: &str, name: &str) -> BackendError {
    BackendError::unavailable(format!(
        "{place} has something under `{}` that dlock did not write; delete it if nothing needs it, \
         or give dlock another prefix",
        Shown(name)
    ))
}

/// Of a request about a key that may be there.
pub(super) fn nonsense(place: &str) -> Failure {
    let error = BackendError::unavailable(format!(
        "{place} gave an answer that is none to what it was asked; check that it is an etcd \
         server, 3.4 or later"
    ));
    Failure {
        cause: Cause::Error(error),
        next: Next::Pause,
        applied: Applied::Answered,
    }
}
