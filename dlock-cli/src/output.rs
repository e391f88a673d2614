//! Writes to standard output.

use std::io::{self, Write};

use crate::exit::Exit;
use crate::say;

/// Writes the whole text. If the reader has closed the pipe, this fails without a message, with the
/// exit code that SIGPIPE gives other programs.
pub(crate) fn write(text: &[u8]) -> Result<Exit, Exit> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(Exit::OK),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Exit::BROKEN_PIPE),
        Err(error) => {
            say::line(format_args!("standard output: {error}"));
            Err(Exit::INTERNAL)
        }
    }
}
