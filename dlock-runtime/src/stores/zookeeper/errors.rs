//! The errors of ZooKeeper and its client as a [`BackendError`]: what happened, where, and what to
//! do about it.

use std::fmt::Display;

use zookeeper_client::Error;

use crate::backend::{BackendError, BackendErrorKind};
use crate::key::Shown;
use crate::store::Failure;
use crate::stores::meaning::Meaning;

/// What can be done about an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ErrorClass {
    /// No answer will come: ask again, over another connection.
    Lost,
    /// The session has ended, and its nodes go with it.
    Over,
    /// The server has answered, with this error.
    #[default]
    Refused,
}

/// The server cannot do what dlock needs, or numbers things as no known server does.
pub(super) const TOO_OLD: Error = Error::Unimplemented;

/// `KeeperException.Code.EPHEMERALONLOCALSESSION`, which the client (0.11) has no name for.
const EPHEMERAL_ON_LOCAL_SESSION: Error = Error::UnexpectedErrorCode(-120);

pub(super) fn classify(error: &Error) -> ErrorClass {
    meaning(error).retry
}

/// The error that a server or the client has returned.
pub(super) fn described(place: impl Display, error: Error) -> BackendError {
    let told = meaning(&error).error(place, &error);
    told.with_cause(error)
}

fn meaning(error: &Error) -> Meaning<ErrorClass> {
    use ErrorClass::{Lost, Over, Refused};
    match error {
        Error::AuthFailed => Meaning {
            retry: Over,
            ..Meaning::config("check the user and the password in the store URL")
        },
        // The client returns `UnexpectedError` if its own task has ended.
        Error::SessionExpired | Error::ClientClosed | Error::UnexpectedError(_) => {
            Meaning::unavailable(Over, "")
        }
        Error::NoHosts | Error::Timeout => Meaning::unavailable(
            Lost,
            "no server answers, or they are without a majority, or expect another kind of \
             connection (TLS)",
        ),
        // An error of the connection, or of a server that the session has left.
        Error::ConnectionLoss
        | Error::SessionMoved
        | Error::Throttled
        | Error::UnmarshalError { .. }
        | Error::Custom(_) => Meaning::unavailable(Lost, ""),
        Error::NoAuth | Error::InvalidAcl => Meaning::denied(
            "the server does not allow it; give the user all rights (cdrwa) there, or name another \
             user or folder in the store URL",
        ),
        Error::NoChildrenForEphemerals => {
            Meaning::config("that is no place for locks, as one of its folders is ephemeral")
        }
        Error::BadArguments(_) => Meaning::config(""),
        &EPHEMERAL_ON_LOCAL_SESSION => Meaning::config(
            "the servers have sessions that cannot hold locks; set \
             `localSessionsUpgradingEnabled=true` on all of them, or leave `localSessionsEnabled` \
             out",
        ),
        &TOO_OLD => Meaning {
            kind: BackendErrorKind::Unsupported,
            ..Meaning::config("the server is too old; ZooKeeper 3.6 or later is needed")
        },
        _ => Meaning::unavailable(Refused, ""),
    }
}

/// The error if no server has answered.
pub(super) fn no_answer(place: &str) -> BackendError {
    BackendError::unavailable(format!(
        "{place} has not answered in time; check that it runs with a majority of its servers, and \
         can be reached"
    ))
}

/// The failure if the servers make no nodes that end by themselves any more.
pub(super) fn forgets(place: &str) -> Failure {
    Failure::stop(BackendError::new(
        BackendErrorKind::Unsupported,
        format!(
            "{place} does not remember what was done any more: its leader runs without \
             `zookeeper.extendedTypesEnabled=true`; set that on all servers"
        ),
    ))
}

/// The failure if a folder has come to the end of its numbers. A new folder begins again, so the
/// same request may succeed later.
pub(super) fn used_up(place: &str, folder: &str) -> Failure {
    let folder = Shown(folder);
    Failure::stop(BackendError::unavailable(format!(
        "{place} is about to use up the numbers of the nodes in {folder}, and would give the same \
         ones again; delete {folder} once it is empty, unless the server does that by itself \
         within a minute, and ask again"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_whose_sessions_hold_no_locks_are_a_wrong_setting() {
        let error = described("a", Error::UnexpectedErrorCode(-120));
        assert_eq!(error.kind(), BackendErrorKind::Config, "{error}");
        assert!(error.to_string().contains("localSessions"), "{error}");
    }
}
