//! Exit codes, as in `sysexits.h` and in shells.

use std::process::ExitCode;

use dlock::LockError;

use crate::say;

/// The exit code of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const OK: Self = Self(0);
    pub(crate) const USAGE: Self = Self(64);
    pub(crate) const DOWN: Self = Self(69);
    /// A failure that no other code describes.
    pub(crate) const INTERNAL: Self = Self(70);
    /// The system refused something that the tool needs, such as a new process.
    pub(crate) const SYSTEM: Self = Self(71);
    pub(crate) const LOST: Self = Self(74);
    pub(crate) const BUSY: u8 = 75;
    pub(crate) const NOT_ALLOWED: Self = Self(77);
    pub(crate) const CONFIG: Self = Self(78);
    pub(crate) const CANNOT_RUN: Self = Self(126);
    pub(crate) const NOT_FOUND: Self = Self(127);
    /// The reader of standard output has closed it: as if SIGPIPE ended the tool.
    pub(crate) const BROKEN_PIPE: Self = Self(128 + 13);

    /// The code that a shell shows for a command that a signal ended.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }

    /// Prints what is wrong, and returns the exit code.
    pub(crate) fn of(error: &LockError) -> Self {
        match error {
            LockError::Done { key, .. } => {
                say::line(format_args!(
                    "lock `{key}`: done already; `dlock forget` has it done again"
                ));
                return Self::OK;
            }
            LockError::Busy { key, .. } => say::line(format_args!(
                "lock `{key}` is held by somebody else; wait for it with -w, or see who with `dlock show`"
            )),
            LockError::Timeout { key, waited, .. } => say::line(format_args!(
                "lock `{key}` could not be taken within {waited:.1?}; see who has it with `dlock show`"
            )),
            LockError::TakenOut { key, .. } => say::line(format_args!(
                "lock `{key}`: taken out of the queue by an operator (`dlock break --waiter`); ask again if it is still needed"
            )),
            error => say::error(error),
        }
        Self::for_error(error)
    }

    /// The exit code of an error.
    pub(crate) fn for_error(error: &LockError) -> Self {
        match error {
            LockError::Busy { .. } | LockError::Timeout { .. } | LockError::TakenOut { .. } => {
                Self(Self::BUSY)
            }
            LockError::Lost { .. } => Self::LOST,
            error if error.is_denied() => Self::NOT_ALLOWED,
            LockError::Unavailable { .. } => Self::DOWN,
            LockError::Config { .. } | LockError::Unsupported { .. } => Self::CONFIG,
            LockError::InvalidKey { .. } => Self::USAGE,
            _ => Self::INTERNAL,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}
