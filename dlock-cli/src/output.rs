//! What is printed on standard output.

use std::io::{self, Write};

use crate::exit::Exit;
use crate::say;

/// All of it. A reader that has left ends this as it ends other programs, without a word.
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
