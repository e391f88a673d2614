//! Exit codes, as in `sysexits.h` and in shells.

use std::process::ExitCode;

use dlock::LockError;
use rustix::process::Signal;

use crate::say;

/// The signals by which the tool ends itself if they have ended its command, or its wait. The others
/// would leave a core file, or are not sent to end a program.
const ENDED_BY: [Signal; 3] = [Signal::HUP, Signal::INT, Signal::TERM];

/// How the tool ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(u8),
    /// A signal has ended the command, or what the tool did.
    Signal(i32),
}

impl Exit {
    pub(crate) const OK: Self = Self::Code(0);
    pub(crate) const USAGE: Self = Self::Code(64);
    pub(crate) const DOWN: Self = Self::Code(69);
    /// A failure that no other code describes.
    pub(crate) const INTERNAL: Self = Self::Code(70);
    /// The system refused something that the tool needs, such as a new process.
    pub(crate) const SYSTEM: Self = Self::Code(71);
    pub(crate) const LOST: Self = Self::Code(74);
    pub(crate) const BUSY: u8 = 75;
    pub(crate) const NOT_ALLOWED: Self = Self::Code(77);
    pub(crate) const CONFIG: Self = Self::Code(78);
    pub(crate) const CANNOT_RUN: Self = Self::Code(126);
    pub(crate) const NOT_FOUND: Self = Self::Code(127);
    /// The reader of standard output has closed it: as if SIGPIPE ended the tool.
    pub(crate) const BROKEN_PIPE: Self = Self::Code(128 + 13);

    /// The exit code. For a signal, the one that a shell shows.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }

    /// Ends the tool. A shell that runs a script goes on after `^C` unless the program that it waits
    /// for was ended by that signal (<https://www.cons.org/cracauer/sigint.html>), and systemd takes
    /// an exit code of 143 for a failure.
    pub(crate) fn end(self) -> ExitCode {
        if let Self::Signal(signal) = self
            && ENDED_BY.iter().any(|by| by.as_raw() == signal)
            // The first process of a container cannot be ended by its own signals.
            && !rustix::process::getpid().is_init()
        {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        self.into()
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
                Self::Code(Self::BUSY)
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
        Self::from(exit.code())
    }
}
