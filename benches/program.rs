//! A program that makes sections when it is told to: dlock in a process of its own,
//! or a peer in another language.
//!
//! It is started as `<program> --lock <name> --server <where>`, connects, and prints
//! `ready` and the version of its lock. Then it is told what to do, a line each:
//!
//! - `rate <prefix> <tasks> <keys> <µs>`: for so long, so many tasks run one empty
//!   section after the other, task n on the key `<prefix>:<n mod keys>`. The answer is
//!   how many sections a second ended in that time.
//! - `contend <key> <tasks> <body in µs> <start> <end>`: between these moments the tasks
//!   run sections on one key. The answer is a line for each section: when the lock was
//!   asked for, when the body began, and when it ended. Then comes `end`.
//!
//! Moments are nanoseconds of the machine's monotonic clock, which all processes
//! share. A task that waits when the time is over has one more section. The program
//! ends with its input.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Nothing takes as long: a program that has said nothing by then never will.
const HANG: Duration = Duration::from_secs(120);

/// A program that runs, killed on drop.
#[derive(Debug)]
pub(crate) struct Program {
    lock: String,
    version: String,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// A critical section, in nanoseconds of the machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) process: usize,
    pub(crate) asked: f64,
    pub(crate) begun: f64,
    pub(crate) ended: f64,
}

/// What many tasks do with one key, between two moments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contention<'a> {
    pub(crate) key: &'a str,
    pub(crate) tasks: usize,
    pub(crate) body: Duration,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

impl Program {
    /// Starts it, and waits until it is connected.
    pub(crate) async fn start(mut command: Command, lock: &str, server: &str) -> Self {
        let mut child = command
            .args(["--lock", lock, "--server", server])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut program = Self {
            lock: lock.to_owned(),
            version: String::new(),
            orders: child.stdin.take().expect("a pipe"),
            answers: BufReader::new(child.stdout.take().expect("a pipe")).lines(),
            child,
        };
        let ready = program.answer().await;
        let version = ready.strip_prefix("ready ");
        program.version = version.expect("a program that is ready").to_owned();
        program
    }

    /// Of its lock.
    #[allow(dead_code, reason = "the table of Redis has no column for it")]
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// How many empty sections a second so many tasks made on so many keys.
    #[allow(
        dead_code,
        reason = "the table of Redis measures that within its own process"
    )]
    pub(crate) async fn rate(
        &mut self,
        prefix: &str,
        tasks: usize,
        keys: usize,
        length: Duration,
    ) -> f64 {
        let length = length.as_micros();
        self.order(&format!("rate {prefix} {tasks} {keys} {length}"))
            .await;
        let rate = self.answer().await;
        rate.parse().expect("a number of sections a second")
    }

    /// Tells it to contend. Its answer comes after the end.
    pub(crate) async fn contend(&mut self, contention: Contention<'_>) {
        let Contention {
            key,
            tasks,
            body,
            start,
            end,
        } = contention;
        let body = body.as_micros();
        self.order(&format!("contend {key} {tasks} {body} {start:.0} {end:.0}"))
            .await;
    }

    /// The sections that it had while it contended.
    pub(crate) async fn sections(&mut self, process: usize) -> Vec<Section> {
        let mut sections = Vec::new();
        loop {
            let line = self.answer().await;
            if line == "end" {
                return sections;
            }
            sections.push(Section::parse(process, &line));
        }
    }

    /// Lets it end.
    pub(crate) async fn end(self) -> ExitStatus {
        let Self {
            mut child, orders, ..
        } = self;
        drop(orders);
        let ended = timeout(HANG, child.wait()).await;
        ended
            .expect("a program that ends with its input")
            .expect("the end of our own child")
    }

    async fn order(&mut self, order: &str) {
        let line = format!("{order}\n");
        let written = self.orders.write_all(line.as_bytes()).await;
        written.expect("a program that reads");
    }

    async fn answer(&mut self) -> String {
        let line = timeout(HANG, self.answers.next_line()).await;
        let lock = &self.lock;
        let line = line.unwrap_or_else(|_| panic!("{lock} has not answered for {HANG:?}"));
        let line = line.expect("a text");
        line.unwrap_or_else(|| panic!("{lock} has failed"))
    }
}

impl Section {
    fn parse(process: usize, line: &str) -> Self {
        let mut moments = line
            .split(' ')
            .map(|moment| moment.parse().expect("a moment"));
        let mut moment = || moments.next().expect("three moments");
        Self {
            process,
            asked: moment(),
            begun: moment(),
            ended: moment(),
        }
    }
}
