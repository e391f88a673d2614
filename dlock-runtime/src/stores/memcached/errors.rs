//! What memcached and its client say, in the words of a [`BackendError`]: what
//! happened, where, and what to do about it.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use async_memcached::{Error, ErrorKind, Status};

use crate::backend::{BackendError, BackendErrorKind};
use crate::key::Shown;

/// Why a command has no answer, or none that could be used.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No answer has come, and none will: the connection is of no use any more.
    Broken(Error),
    /// None has come in time.
    Silent,
    /// The server answered with an error.
    Refused(ErrorKind),
    /// It does not number its items.
    NoCas,
    /// It is walking through its items for somebody else.
    Busy(String),
    /// It does not let anybody walk through them.
    NoList,
    /// It has too many of them to be walked through in the time there is.
    LongList,
    /// Its name leads to servers that do not know of each other.
    SeveralServers(Vec<Ipv4Addr>),
    /// Its name leads to none that the client can reach.
    NoAddress,
    /// The runtime of the call cannot have a connection.
    NoRuntime,
    /// The backend has stopped.
    Stopped,
}

impl Failure {
    /// An answer that does not belong to the command.
    pub(super) fn nonsense(status: &Status) -> Self {
        let text = format!("unexpected answer: {status}");
        Self::Broken(Error::Protocol(Status::Error(ErrorKind::Protocol(Some(
            text,
        )))))
    }

    /// Whether another attempt may do better.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Broken(_) | Self::Silent | Self::Busy(_) => true,
            Self::Refused(_)
            | Self::NoCas
            | Self::NoList
            | Self::LongList
            | Self::SeveralServers(_)
            | Self::NoAddress
            | Self::NoRuntime
            | Self::Stopped => false,
        }
    }

    /// Whether the command may have been run, or may be run yet.
    pub(super) fn is_in_doubt(&self) -> bool {
        match self {
            Self::Broken(Error::Connect(_)) => false,
            // What it has stored it may have lost track of: a number that is
            // missing is one of those answers.
            Self::Broken(_) | Self::Silent | Self::NoCas => true,
            Self::Refused(_)
            | Self::Busy(_)
            | Self::NoList
            | Self::LongList
            | Self::SeveralServers(_)
            | Self::NoAddress
            | Self::NoRuntime
            | Self::Stopped => false,
        }
    }

    pub(super) fn into_error(self, at: &dyn fmt::Display, waited: Duration) -> BackendError {
        use BackendErrorKind::{Config, Unavailable, Unsupported};
        match self {
            Self::Broken(error) => {
                let advice = match error {
                    Error::Protocol(_) | Error::ParseError(_) => {
                        "is there something else behind the URL, or a server that takes no more \
                         connections?"
                    }
                    _ => "check that the server runs and that the URL names its host and port",
                };
                BackendError::unavailable(format!("{at}: {error}; {advice}")).with_source(error)
            }
            Self::Silent => silent(at, waited),
            Self::Refused(ErrorKind::Server(said)) => BackendError::new(
                Unavailable,
                format!("{at} answered: {said}; give it more memory, or see its log"),
            ),
            Self::Refused(said) => BackendError::new(
                Config,
                format!(
                    "{at} answered: {said}; dlock needs memcached 1.6.18 or later, itself and no \
                     proxy before it, without `-S` or `-Y`"
                ),
            ),
            Self::NoCas => BackendError::new(
                Config,
                format!("{at} does not number its items; start it without `-C` (--disable-cas)"),
            ),
            Self::Busy(why) => BackendError::new(
                Unavailable,
                format!("{at} is listing its items for somebody else ({why}); try again"),
            ),
            Self::Stopped => stopped(),
            Self::NoRuntime => BackendError::new(
                Unsupported,
                "the tokio runtime of this call is shutting down, or was built without \
                 `enable_all()`",
            ),
            Self::LongList => BackendError::new(
                Unavailable,
                format!(
                    "{at} has too many items to list them all within the request timeout; give the \
                     locks a server of their own, raise the timeout, or inspect locks one by one"
                ),
            ),
            Self::SeveralServers(servers) => {
                let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
                BackendError::new(
                    Config,
                    format!(
                        "{at}: the name leads to {} addresses ({}), and servers that do not know of \
                         each other would all give the same lock; write a name or an address that \
                         leads to one server",
                        servers.len(),
                        servers.join(", ")
                    ),
                )
            }
            Self::NoAddress => BackendError::new(
                Config,
                format!("{at}: the name leads to no IPv4 address, and the client has no IPv6"),
            ),
            Self::NoList => BackendError::new(
                Unsupported,
                format!(
                    "{at} does not list its items; start it without `-X` and with its LRU \
                     crawler, or inspect locks one by one"
                ),
            ),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Protocol(Status::Error(
                said @ (ErrorKind::Client(_)
                | ErrorKind::Server(_)
                | ErrorKind::NonexistentCommand
                | ErrorKind::KeyTooLong),
            )) => Self::Refused(said),
            other => Self::Broken(other),
        }
    }
}

/// Nothing was heard in time.
pub(super) fn silent(at: &dyn fmt::Display, after: Duration) -> BackendError {
    BackendError::unavailable(format!(
        "{at} did not answer within {after:?}; check the network, or raise the request timeout"
    ))
}

/// Something that dlock did not write stands where a lock belongs.
pub(super) fn foreign(at: &dyn fmt::Display, name: &[u8]) -> BackendError {
    BackendError::new(
        BackendErrorKind::Config,
        format!(
            "{at}: the item `{}` holds a value that dlock did not write; remove it, or keep \
             dlock's keys apart with another namespace",
            Shown(&String::from_utf8_lossy(name))
        ),
    )
}

/// No operation follows the stop of a backend.
pub(super) fn stopped() -> BackendError {
    BackendError::unavailable("the memcached backend has stopped")
}

/// A future has no runtime to run on.
pub(super) fn outside_runtime() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        "called outside a tokio runtime; call it from a task of one, for example under \
         `#[tokio::main]`",
    )
}
