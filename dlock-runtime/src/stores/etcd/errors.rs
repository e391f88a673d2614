//! The errors of etcd and its client as a [`BackendError`]: what happened, where, and what to do
//! about it.

use std::time::Duration;

use etcd_client::Error;

use crate::backend::BackendError;
use crate::key::Shown;
use crate::store::{Applied, Cause, Failure, Next};
use crate::stores::meaning::{self, Meaning};

/// What can be done about an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ErrorClass {
    /// Ask again, another member if there is one.
    AskElsewhere,
    /// The member has answered that it cannot do this at the moment: ask again. Nothing is on its
    /// way. What made the database full may have been done (`quotaApplierV3` in etcd's `apply.go`).
    AskLater,
    /// Log in again, and ask again.
    LogIn,
    /// The lease has ended: ask again with another lease.
    LeaseNotFound,
    /// There is a lease with this id already.
    LeaseExists,
    /// dlock can do nothing about it.
    #[default]
    Refused,
}

/// A request that failed.
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
                ErrorClass::AskElsewhere | ErrorClass::AskLater | ErrorClass::LogIn => Next::Pause,
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

/// The error that the server or the client has returned for a request.
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

/// By the messages of the server, which are the same in every version and language. Its codes are
/// not: calls that a server passes on to itself lose them. (`api/v3rpc/rpctypes/error.go` in etcd.)
fn meaning(error: &Error) -> Meaning<ErrorClass> {
    use ErrorClass::{AskElsewhere, AskLater, LeaseExists, LeaseNotFound, LogIn};
    let (config, unavailable) = (Meaning::config, Meaning::unavailable);
    let message = match error {
        Error::GRpcStatus(status) => status.message(),
        Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
            return config("");
        }
        // The message is the client's own.
        Error::LeaseKeepAliveError(text) if text.contains("not found") => {
            return unavailable(LeaseNotFound, "");
        }
        _ => "",
    };
    let says = |text| message.contains(text);
    // A Lock call whose key went while it waited says the second.
    if says("requested lease not found") || says("session is expired") {
        unavailable(LeaseNotFound, "")
    } else if says("lease already exists") {
        unavailable(LeaseExists, "")
    } else if says("invalid auth token") || says("revision of auth store is old") {
        unavailable(LogIn, "")
    } else if says("authentication failed") {
        config("check the user and the password in the URL")
    } else if says("user name is empty") {
        config("this server wants a user: etcd://user:password@host")
    } else if says("authentication is not enabled") {
        config("this server knows no users: leave them out of the URL")
    } else if says("permission denied") {
        Meaning::denied(
            "give this user's role reading and writing of all keys that begin with the prefix \
             (`etcdctl role grant-permission ROLE readwrite dlock/ --prefix`)",
        )
    } else if says("too large") || says("is too long") {
        config("use a shorter key")
    } else if says("too many operations") {
        config("start the server with --max-txn-ops=128 or more, as is its default")
    } else if says("database space exceeded") {
        let advice = "compact and defragment it, then `etcdctl alarm disarm`";
        unavailable(AskLater, advice)
    } else if says("too many requests") {
        unavailable(AskLater, "it has more to do than it can")
    } else {
        unavailable(AskElsewhere, "")
    }
}

/// A status that the client has made itself says little without its causes.
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

/// The error for a key that dlock did not write, in the place of a mark or of the floor.
pub(super) fn foreign(place: &str, name: &str) -> BackendError {
    let name = Shown(name);
    meaning::foreign(
        place,
        format_args!(
            "the key `{name}` holds a value that dlock did not write; delete it if nothing needs \
             it, or give dlock another prefix"
        ),
    )
}

/// The failure of a request about a key that may be there, whose answer makes no sense.
pub(super) fn unexpected_answer(place: &str) -> Failure {
    let error = BackendError::unavailable(format!(
        "{place} gave an answer that is none to what it was asked; check that it is an etcd \
         server, 3.4 or later"
    ));
    Failure::refused(error).with(Applied::Answered)
}
