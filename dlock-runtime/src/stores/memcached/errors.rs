//! Turns the errors of memcached and its client into a [`BackendError`]: what happened, where,
//! and what to do about it.

use std::fmt;
use std::time::{Duration, Instant};

use async_memcached::{Error, ErrorKind, Status};

use crate::backend::{BackendError, BackendErrorKind};
use crate::key::Shown;
use crate::store::{Applied, Cause, Failure, Next};
use crate::stores::meaning::{self, Meaning};

/// Why a command has no usable answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// No answer came, and none will: the connection cannot be used any more.
    Broken(Error),
    /// No answer came in time.
    Silent,
    /// The server answered with an error.
    Refused(ErrorKind),
    /// The server does not number its items.
    NoCas,
    /// Nothing was done, for a reason that dlock found itself.
    NotDone(Meaning<Next>, String),
}

impl Failed {
    /// A failure that a person has to fix.
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
    pub(super) fn unexpected_answer(status: &Status) -> Self {
        let text = format!("unexpected answer: {status}");
        Self::Broken(Error::Protocol(Status::Error(ErrorKind::Protocol(Some(
            text,
        )))))
    }

    /// Whether the command may have been run, or may still be run.
    pub(super) fn is_in_doubt(&self) -> bool {
        match self {
            Self::Broken(error) => !matches!(error, Error::Connect(_)),
            // With `NoCas`, the item may have been stored: its number was missing in the answer.
            failed => matches!(failed, Self::Silent | Self::NoCas),
        }
    }

    /// The failure of a command that was sent at `sent_at`.
    pub(super) fn at(self, server: &dyn fmt::Display, sent_at: Instant) -> Failure {
        let applied = match self.is_in_doubt() {
            true => Applied::Unknown { sent_at },
            false => Applied::No,
        };
        let (meaning, said) = match &self {
            Self::Silent => return Failure::silent(applied),
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

/// No answer came in time.
pub(super) fn silent(at: &dyn fmt::Display, after: Duration) -> BackendError {
    BackendError::unavailable(format!(
        "{at} did not answer within {after:?}; check the network, or raise the request timeout"
    ))
}

/// The item of a lock has a value that dlock did not write.
pub(super) fn foreign(at: &dyn fmt::Display, name: &[u8]) -> BackendError {
    let name = String::from_utf8_lossy(name);
    meaning::foreign(
        at,
        format_args!(
            "the item `{}` holds a value that dlock did not write; remove it, or keep dlock's keys \
             apart with another namespace",
            Shown(&name)
        ),
    )
}
