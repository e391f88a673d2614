//! Messages on standard error. If a message cannot be written, the tool goes on without it.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::run::terminal;

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// With `-v`, prints more, and also what dlock logs.
pub(crate) fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
    if verbose {
        let log = tracing_subscriber::fmt()
            .with_writer(|| Errors)
            .with_ansi(false)
            .with_max_level(tracing::Level::DEBUG)
            .log_internal_errors(false);
        // It fails only if a logger is set already, and nothing else sets one.
        let _ = log.try_init();
    }
}

pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// Prints one line: line breaks in the text become blanks.
pub(crate) fn line(what: impl fmt::Display) {
    let what = what.to_string().replace(['\n', '\r'], " ");
    raw(&format!("dlock: {what}\n"));
}

/// Prints the error in one line and, with `-v`, each cause in a line of its own.
pub(crate) fn error(error: &(dyn Error + 'static)) {
    line(error);
    if is_verbose() {
        let mut cause = error.source();
        while let Some(error) = cause {
            line(format_args!("  because: {error}"));
            cause = error.source();
        }
    }
}

/// Prints the text as it is.
pub(crate) fn raw(text: &str) {
    let _ = Errors.write_all(text.as_bytes());
}

/// Standard error. While the command has the terminal, this process is in its background, where a
/// terminal with `stty tostop` would stop it for printing.
struct Errors;

impl Write for Errors {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        terminal::stopping_nobody(|| io::stderr().write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
