//! What memcached and its client say, in the words of a [`BackendError`]: what
//! happened, where, and what to do about it.

use std::fmt;
use std::time::{Duration, Instant};

use async_memcached::{Error, ErrorKind, Status};

use crate::backend::{BackendError, BackendErrorKind};
use crate::key::Shown;
use crate::store::{Applied, Cause, Failure, Next};
use crate::stores::meaning::Meaning;

/// Why a command has no answer, or none that could be used.
#[derive(Debug)]
pub(crate) enum Failed {
    /// No answer has come, and none will: the connection is of no use any more.
    Broken(Error),
    /// None has come in time.
    Silent,
    /// The server answered with an error.
    Refused(ErrorKind),
    /// It does not number its items.
    NoCas,
    /// Nothing was done.
    NotDone(Meaning<Next>, String),
}

impl Failed {
    /// What somebody else has to see to.
    pub(super) fn not_done(
        kind: BackendErrorKind,
        said: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        let meaning = Meaning {
            kind,
            retry: Next::Stop,
            advice,
            denied: false,
        };
        Self::NotDone(meaning, said.into())
    }

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

    /// What a command that was sent then has failed with.
    pub(super) fn at(self, server: &dyn fmt::Display, sent_at: Instant) -> Failure {
        let applied = match self.is_in_doubt() {
            true => Applied::Unknown { sent_at },
            false => Applied::No,
        };
        let (meaning, said) = match &self {
            Self::Silent => {
                return Failure {
                    cause: Cause::Silence,
                    next: Next::Pause,
                    applied,
                };
            }
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
            Self::Refused(said @ ErrorKind::Server(_)) => (
                Meaning::unavailable(Next::Stop, "give it more memory, or see its log"),
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
            Self::NotDone(meaning, said) => (*meaning, said.clone()),
        };
        let told = meaning.error(server, said);
        Failure {
            cause: Cause::Error(match self {
                Self::Broken(error) => told.with_cause(error),
                _ => told,
            }),
            next: meaning.retry,
            applied,
        }
    }
}

impl From<Error> for Failed {
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
