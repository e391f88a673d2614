//! A program as a user runs it, and its output.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::time::sleep;

use super::process::Process;
use super::wait::{HANG, STEP, within};

/// A running program, killed on drop.
#[derive(Debug)]
pub struct Program {
    /// The process, to pause or kill it.
    pub process: Process,
    printed: Stream,
    errors: Stream,
}

impl Program {
    /// Starts it without input.
    pub fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::null())
    }

    /// Starts it with this input.
    pub fn start_with(mut command: Command, input: Stdio) -> Self {
        command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::spawn(command).expect("a program");
        let (printed, errors) = process.pipes();
        Self {
            process,
            printed: Stream::of(printed.expect("a pipe")),
            errors: Stream::of(errors.expect("a pipe")),
        }
    }

    /// Its output so far, in whole lines.
    pub fn printed(&self) -> String {
        self.printed.text()
    }

    /// Its error output so far, in whole lines.
    pub fn errors(&self) -> String {
        self.errors.text()
    }

    /// Whether nothing can be printed any more: neither the program nor a process that it has
    /// started is left.
    pub fn is_silent(&self) -> bool {
        self.printed.reader.is_finished() && self.errors.reader.is_finished()
    }

    /// Waits until it ends by itself, together with all processes that it has started.
    pub async fn end(&mut self) -> Output {
        let ended = async {
            loop {
                match self.process.ended() {
                    Some(status) if self.is_silent() => return status,
                    _ => sleep(STEP).await,
                }
            }
        };
        let status = within(2 * HANG, ended).await;
        Output {
            status,
            stdout: self.printed().into_bytes(),
            stderr: self.errors().into_bytes(),
        }
    }
}

/// The lines that were read from a pipe.
#[derive(Debug)]
struct Stream {
    lines: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Stream {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(String::new()));
        let read = Arc::clone(&lines);
        let reader = std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe
                .read_until(b'\n', &mut line)
                .is_ok_and(|bytes| bytes > 0)
            {
                let text = String::from_utf8_lossy(&line);
                read.lock().expect("no panic").push_str(&text);
                line.clear();
            }
        });
        Self { lines, reader }
    }

    fn text(&self) -> String {
        self.lines.lock().expect("no panic").clone()
    }
}
