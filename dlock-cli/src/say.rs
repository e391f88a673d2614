//! What is told on standard error. Nobody may read it: that is no reason to fail.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::run::terminal;

static VERBOSE: AtomicBool = AtomicBool::new(false);

/// Whether more is told, and what dlock logs along with it.
pub(crate) fn set_verbose(verbose: bool) {
    VERBOSE.store(verbose, Ordering::Relaxed);
    if verbose {
        let log = tracing_subscriber::fmt()
            .with_writer(|| Errors)
            .with_ansi(false)
            .with_max_level(tracing::Level::DEBUG)
            .log_internal_errors(false);
        // Nobody else has set one.
        let _ = log.try_init();
    }
}

pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// One line, whatever is in it.
pub(crate) fn line(what: impl fmt::Display) {
    let what = what.to_string().replace(['\n', '\r'], " ");
    raw(&format!("dlock: {what}\n"));
}

/// The error in one line; with `-v`, a line for each cause.
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

/// As it is.
pub(crate) fn raw(text: &str) {
    let _ = Errors.write_all(text.as_bytes());
}

/// Standard error. While the command has the terminal, this process is in its background,
/// and a terminal that is set so (`stty tostop`) would stop it for what it prints.
struct Errors;

impl Write for Errors {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        terminal::stopping_nobody(|| io::stderr().write(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
