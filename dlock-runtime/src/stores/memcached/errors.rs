//! What memcached and its client say, in the words of a [`BackendError`]: what
//! happened, where, and what to do about it.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use async_memcached::{Error, ErrorKind, Status};

use crate::backend::{BackendError, BackendErrorKind};
use crate::key::Shown;
use crate::store::Next;
use crate::stores::meaning::Meaning;

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

    /// Whether the command may have been run, or may be run yet.
    pub(super) fn is_in_doubt(&self) -> bool {
        match self {
            Self::Broken(error) => !matches!(error, Error::Connect(_)),
            // What it has stored it may have lost track of: a number that is
            // missing is one of those answers.
            failed => matches!(failed, Self::Silent | Self::NoCas),
        }
    }

    /// Whether another attempt may do better, and what is told if not.
    pub(super) fn told(self, at: &dyn fmt::Display) -> (Next, BackendError) {
        let (meaning, said) = self.meaning();
        let told = meaning.told(at, said);
        let error = match self {
            Self::Broken(error) => told.with_source(error),
            _ => told,
        };
        (meaning.retry, error)
    }

    fn meaning(&self) -> (Meaning<Next>, String) {
        let stop = |advice| Meaning::unavailable(Next::Stop, advice);
        let unsupported = |advice| Meaning {
            kind: BackendErrorKind::Unsupported,
            ..stop(advice)
        };
        match self {
            Self::Broken(error) => {
                let advice = match error {
                    Error::Protocol(_) | Error::ParseError(_) => {
                        "is there something else behind the URL, or a server that takes no more \
                         connections?"
                    }
                    _ => "check that the server runs and that the URL names its host and port",
                };
                (Meaning::unavailable(Next::Pause, advice), error.to_string())
            }
            Self::Silent => (
                Meaning::unavailable(Next::Pause, "check the network"),
                "it did not answer".to_owned(),
            ),
            Self::Refused(said @ ErrorKind::Server(_)) => (
                stop("give it more memory, or see its log"),
                format!("it answered: {said}"),
            ),
            Self::Refused(said) => (
                Meaning::config(
                    "dlock needs memcached 1.6.18 or later, itself and no proxy before it, without \
                     `-S` or `-Y`",
                ),
                format!("it answered: {said}"),
            ),
            Self::NoCas => (
                Meaning::config("start it without `-C` (--disable-cas)"),
                "it does not number its items".to_owned(),
            ),
            Self::Busy(why) => (
                Meaning::unavailable(Next::Pause, "try again"),
                format!("it is listing its items for somebody else ({why})"),
            ),
            Self::NoList => (
                unsupported(
                    "start it without `-X` and with its LRU crawler, or inspect locks one by one",
                ),
                "it does not list its items".to_owned(),
            ),
            Self::LongList => (
                stop(
                    "give the locks a server of their own, raise the timeout, or inspect locks one \
                     by one",
                ),
                "it has too many items to list them all within the request timeout".to_owned(),
            ),
            Self::SeveralServers(servers) => {
                let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
                let said = format!(
                    "the name leads to {} addresses ({}), and servers that do not know of each \
                     other would all give the same lock",
                    servers.len(),
                    servers.join(", ")
                );
                let advice = "write a name or an address that leads to one server";
                (Meaning::config(advice), said)
            }
            Self::NoAddress => (
                Meaning::config("write one that has such an address"),
                "the name leads to no IPv4 address, and the client has no IPv6".to_owned(),
            ),
            Self::NoRuntime => (
                unsupported("call it from a runtime with `enable_all()`"),
                "the tokio runtime of this call is shutting down, or has no I/O or timers"
                    .to_owned(),
            ),
            Self::Stopped => (stop(""), "the backend has stopped".to_owned()),
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

/// A future has no runtime to run on.
pub(super) fn outside_runtime() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unsupported,
        "called outside a tokio runtime; call it from a task of one, for example under \
         `#[tokio::main]`",
    )
}
