//! `dlock run` in a terminal: who has it, and what its keys do.

use std::io::{Read, Write};
use std::process::Child;
use std::sync::{Arc, Mutex};

use pty_process::blocking::{self, Pty};

use crate::losing::STANDS_STILL;
use crate::support::calm::unless_it_stands_still;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, eventually_blocking};
use crate::{lives, nobody_watches, redis};

/// A terminal with a program in it, which is killed on drop.
pub(crate) struct Terminal {
    pty: Arc<Pty>,
    child: Child,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn with(program: &str, arguments: &[&str], server: &RedisServer) -> Self {
        let (pty, pts) = blocking::open().expect("a pseudo-terminal");
        // Whoever runs the tests in the background has interrupts ignored.
        let child = blocking::Command::new("env")
            .args(["--default-signal", program])
            .args(arguments)
            .env("DLOCK_URL", server.url())
            // The first connection may take a busy machine long.
            .env("DLOCK_REQUEST_TIMEOUT", "10s")
            .env("dlock", env!("CARGO_BIN_EXE_dlock"))
            .env("PS1", "prompt> ")
            .env("TERM", "dumb")
            .spawn(pts)
            .expect("a program");
        let (pty, shown) = (Arc::new(pty), Arc::new(Mutex::new(String::new())));
        let (reader, text) = (Arc::clone(&pty), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(length @ 1..) = (&*reader).read(&mut buffer) {
                let more = String::from_utf8_lossy(&buffer[..length]).into_owned();
                text.lock().expect("no panic").push_str(&more);
            }
        });
        Self { pty, child, shown }
    }

    /// The tool, which has the terminal to itself.
    pub(crate) fn with_tool(arguments: &[&str], server: &RedisServer) -> Self {
        Self::with(env!("CARGO_BIN_EXE_dlock"), arguments, server)
    }

    /// A shell that knows of jobs.
    async fn with_shell(server: &RedisServer) -> Self {
        let terminal = Self::with("bash", &["--norc", "--noprofile", "-i"], server);
        terminal.shows("prompt> ").await;
        terminal
    }

    pub(crate) fn types(&self, keys: &str) {
        (&*self.pty).write_all(keys.as_bytes()).expect("a terminal");
    }

    /// Waits until this is on the screen, and forgets all up to there.
    pub(crate) async fn shows(&self, text: &str) -> String {
        eventually(&format!("{text:?} is shown"), async || {
            let mut shown = self.shown.lock().expect("no panic");
            let end = shown.find(text)? + text.len();
            Some(shown.drain(..end).collect())
        })
        .await
    }

    /// The same, and gives the word behind it.
    async fn word_behind(&self, text: &str) -> String {
        self.shows(text).await;
        self.shows("\n").await.trim().to_owned()
    }

    pub(crate) fn ends(mut self) -> Option<i32> {
        let ended = eventually_blocking("it ends", || self.child.try_wait().expect("a child"));
        crate::code_of(ended)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_command_reads_the_keys() {
    let server = redis().await;
    let terminal = Terminal::with_tool(&["run", "k", "--", "cat"], &server);
    terminal.types("hello\n");
    terminal.shows("hello\r\nhello\r\n").await;
    terminal.types("\u{4}");
    assert_eq!(terminal.ends(), Some(0));
}

#[tokio::test]
async fn an_interrupt_is_the_commands() {
    let server = redis().await;
    // No shell between: a process that it has just made by `vfork` may swallow an interrupt.
    let terminal = Terminal::with_tool(&["run", "k", "--", "cat"], &server);
    terminal.types("ready\n");
    terminal.shows("ready\r\nready\r\n").await;
    terminal.types("\u{3}");
    assert_eq!(terminal.ends(), Some(130));

    let script = "n=0; trap 'n=$((n+1)); echo got $n' INT; echo ready
        while [ $n -lt 2 ]; do sleep 0.05; done; exit 5";
    let terminal = Terminal::with_tool(&["run", "k", "--", "sh", "-c", script], &server);
    terminal.shows("ready").await;
    for got in ["got 1", "got 2"] {
        terminal.types("\u{3}");
        terminal.shows(got).await;
    }
    assert_eq!(terminal.ends(), Some(5));
}

#[tokio::test]
async fn a_job_stops_and_goes_on() {
    let server = redis().await;
    let terminal = Terminal::with_shell(&server).await;
    terminal.types("$dlock run k -- sh -c 'echo pid $$; exec cat'\n");
    let command = terminal.word_behind("\r\npid ").await;
    terminal.types("one\n");
    terminal.shows("one\r\none\r\n").await;
    for round in ["two", "three"] {
        terminal.types("\u{1a}");
        terminal.shows("Stopped").await;
        terminal.shows("prompt> ").await;
        assert!(lives(&command));
        // The shell has the keys.
        terminal.types("echo here $((40 + 2))\n");
        terminal.shows("here 42").await;
        terminal.types("fg\n");
        terminal.shows("exec cat'\r\n").await;
        terminal.types(&format!("{round}\n"));
        terminal.shows(&format!("{round}\r\n{round}\r\n")).await;
    }
    terminal.types("\u{4}");
    terminal.shows("prompt> ").await;
    terminal.types("echo code $?\n");
    terminal.shows("\ncode 0").await;
    nobody_watches(&command).await;
}

/// Nobody renews the lock of a job that is stopped: it ends when its time is over.
#[tokio::test]
async fn a_job_that_stays_stopped_ends() {
    unless_it_stands_still(STANDS_STILL, async || {
        let server = redis().await;
        let terminal = Terminal::with_shell(&server).await;
        terminal.types("export DLOCK_REQUEST_TIMEOUT=2s\n");
        terminal.shows("prompt> ").await;
        terminal.types("$dlock run --ttl 6s -k 1s k -- sh -c 'echo pid $$; exec sleep 1000'\n");
        let command = terminal.word_behind("\r\npid ").await;
        terminal.types("\u{1a}");
        terminal.shows("Stopped").await;
        terminal.shows("prompt> ").await;
        eventually("it is ended", async || (!lives(&command)).then_some(())).await;
        terminal.types("fg\n");
        terminal.shows("dlock: the l").await;
        terminal.shows("prompt> ").await;
        terminal.types("echo code $?\n");
        terminal.shows("\ncode 74").await;
        nobody_watches(&command).await;
    })
    .await;
}

#[tokio::test]
async fn a_job_in_the_background_leaves_the_keys_alone() {
    let server = redis().await;
    let terminal = Terminal::with_shell(&server).await;
    terminal.types("$dlock run k -- sh -c 'echo pid $$; exec cat' &\n");
    terminal.shows("exec cat' &\r\n").await;
    let command = terminal.word_behind("pid ").await;
    // The shell tells at its next prompt.
    eventually("it is stopped", async || {
        terminal.types("\n");
        terminal
            .shows("prompt> ")
            .await
            .contains("Stopped")
            .then_some(())
    })
    .await;
    terminal.types("fg\n");
    terminal.shows("exec cat'\r\n").await;
    terminal.types("mine\n");
    terminal.shows("mine\r\nmine\r\n").await;
    terminal.types("\u{4}");
    terminal.shows("prompt> ").await;
    nobody_watches(&command).await;
}

/// A pager has the keys, until the command asks for them.
#[tokio::test]
async fn a_pipeline_shares_the_terminal() {
    let server = redis().await;
    let terminal = Terminal::with_shell(&server).await;
    terminal.types("$dlock run k -- echo long | sh -c 'cat; read x < /dev/tty; echo key $x'\n");
    terminal.shows("\r\nlong").await;
    terminal.types("q\n");
    terminal.shows("\nkey q").await;
    terminal.shows("prompt> ").await;

    terminal.types("$dlock run k -- sh -c 'echo pid $$; exec cat' | cat\n");
    let command = terminal.word_behind("\r\npid ").await;
    terminal.types("typed\n");
    terminal.shows("typed\r\ntyped\r\n").await;
    terminal.types("\u{1a}");
    terminal.shows("Stopped").await;
    terminal.types("\n");
    terminal.shows("prompt> ").await;
    terminal.types("fg\n");
    terminal.shows("| cat\r\n").await;
    terminal.types("again\n");
    terminal.shows("again\r\nagain\r\n").await;
    terminal.types("\u{4}");
    terminal.shows("prompt> ").await;
    nobody_watches(&command).await;
}

/// A terminal that goes away ends what is in it, as without the tool.
#[tokio::test]
async fn a_terminal_that_closes_ends_the_command() {
    let server = redis().await;
    let arguments = ["run", "k", "--", "sh", "-c", "echo pid $$; exec sleep 1000"];
    let mut terminal = Terminal::with_tool(&arguments, &server);
    let command = terminal.word_behind("pid ").await;
    let _ = terminal.child.kill();
    let _ = terminal.child.wait();
    eventually("it is ended", async || (!lives(&command)).then_some(())).await;
    nobody_watches(&command).await;
}

/// What the tool says of a loss, it says from the background of the terminal.
#[tokio::test]
async fn a_terminal_that_stops_who_prints_stops_no_tool() {
    unless_it_stands_still(STANDS_STILL, async || {
        let server = redis().await;
        let terminal = Terminal::with_shell(&server).await;
        terminal.types("stty tostop; export DLOCK_REQUEST_TIMEOUT=2s\n");
        terminal.shows("prompt> ").await;
        terminal.types("$dlock run --ttl 8s -k 3s --max-hold 1s k -- sh -c 'trap \"exit 0\" TERM; echo pid $$; cat'\n");
        let command = terminal.word_behind("\r\npid ").await;
        terminal.shows("told to end").await;
        terminal.shows("prompt> ").await;
        terminal.types("echo code $?\n");
        terminal.shows("\ncode 74").await;
        nobody_watches(&command).await;
    })
    .await;
}
