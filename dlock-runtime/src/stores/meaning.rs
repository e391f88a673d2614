//! What an error of a server means: one shape of table for every store.

use std::fmt::Display;

use crate::backend::{BackendError, BackendErrorKind};

/// A row of such a table: what it is to the caller, what dlock can do then, and what
/// somebody else can.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "sqlx"),
    allow(unreachable_pub, reason = "for databases")
)]
pub struct Meaning<R> {
    pub(super) kind: BackendErrorKind,
    pub(super) retry: R,
    /// Empty if there is none.
    pub(super) advice: &'static str,
}

impl<R> Meaning<R> {
    /// Somebody has to change a setting.
    pub(super) fn config(advice: &'static str) -> Self
    where
        R: Default,
    {
        Self {
            kind: BackendErrorKind::Config,
            retry: R::default(),
            advice,
        }
    }

    pub(super) fn unavailable(retry: R, advice: &'static str) -> Self {
        Self {
            kind: BackendErrorKind::Unavailable,
            retry,
            advice,
        }
    }

    /// The error, of a server that said so.
    pub(super) fn told(&self, place: impl Display, said: impl Display) -> BackendError {
        BackendError::new(
            self.kind,
            match self.advice {
                "" => format!("{place}: {said}"),
                advice => format!("{place}: {said}; {advice}"),
            },
        )
    }
}
