//! What went wrong, and what can be done about it.

use zookeeper_client::Error;

use crate::backend::{BackendError, BackendErrorKind};
use crate::key::Shown;

/// Why a command has no answer that helps.
#[derive(Clone, Debug)]
pub(crate) enum Failed {
    /// The connection broke. The command may have been done.
    Lost,
    /// The session has ended, and its nodes go with it.
    Over,
    /// There was no answer in time. The command may be done yet.
    TooLate,
    /// There was no connection in time: nothing was sent.
    NotSent,
    /// There is no session, and why the last could not be opened.
    NoSession(Option<BackendError>),
    /// The server does not do it.
    Refused(Error),
    /// The numbers by which the requests in this folder queue are used up.
    UsedUp,
}

impl Failed {
    pub(super) fn of(error: Error) -> Self {
        match error {
            Error::SessionExpired | Error::ClientClosed | Error::AuthFailed
            // The client says so when its own task has ended.
            | Error::UnexpectedError(_) => Self::Over,
            // Either the connection's own error, or that of a server which the
            // session has left.
            Error::ConnectionLoss
            | Error::SessionMoved
            | Error::Timeout
            | Error::Throttled
            | Error::UnmarshalError { .. }
            | Error::Custom(_) => Self::Lost,
            error => Self::Refused(error),
        }
    }
}

/// Its numbers are not those of a server that dlock knows.
pub(super) const TOO_OLD: Failed = Failed::Refused(Error::Unimplemented);

/// No server has answered.
pub(super) fn no_answer(place: &str) -> BackendError {
    BackendError::unavailable(format!(
        "{place} has not answered in time; check that it runs with a majority of its servers, and \
         can be reached"
    ))
}

/// No session could be opened.
pub(super) fn not_connected(place: &str, error: Error) -> BackendError {
    let (kind, message) = match error {
        Error::AuthFailed => (
            BackendErrorKind::Config,
            format!("{place} refuses the user or the password in the store URL"),
        ),
        Error::BadArguments(reason) => (
            BackendErrorKind::Config,
            format!("{place} cannot be connected to: {reason}"),
        ),
        Error::NoHosts | Error::Timeout => (
            BackendErrorKind::Unavailable,
            format!(
                "{place} lets nobody in: no server answers, or they are without a majority, or \
                 expect another kind of connection (TLS)"
            ),
        ),
        ref error => (
            BackendErrorKind::Unavailable,
            format!("{place} cannot be connected to: {error}"),
        ),
    };
    BackendError::new(kind, message).with_source(error)
}

/// The server does not do what it was asked for in this folder.
pub(super) fn refused(place: &str, folder: &str, error: Error) -> BackendError {
    let folder = Shown(folder);
    let (kind, message) = match &error {
        Error::NoAuth | Error::InvalidAcl => (
            BackendErrorKind::Config,
            format!(
                "{place} does not allow it in {folder}; give the user all rights (cdrwa) there, \
                 or name another user or folder in the store URL"
            ),
        ),
        Error::NoChildrenForEphemerals => (
            BackendErrorKind::Config,
            format!("{place}: {folder} is no place for locks, as one of its folders is ephemeral"),
        ),
        Error::Unimplemented => (
            BackendErrorKind::Unsupported,
            format!("{place} is too old; ZooKeeper 3.6 or later is needed"),
        ),
        error => (
            BackendErrorKind::Unavailable,
            format!("{place} refused in {folder}: {error}"),
        ),
    };
    BackendError::new(kind, message).with_source(error)
}

/// The folder has come to the end of its numbers. A folder that is made anew
/// begins again, so the lock can be had later as it was asked for.
pub(super) fn used_up(place: &str, folder: &str) -> BackendError {
    let folder = Shown(folder);
    BackendError::unavailable(format!(
        "{place} is about to use up the numbers of the nodes in {folder}, and would give the same \
         ones again; delete {folder} once it is empty, unless the server does that by itself \
         within a minute, and ask again"
    ))
}
