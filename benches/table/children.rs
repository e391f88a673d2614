//! Several processes that contend for one lock, and what became of it.

use std::process::Stdio;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::Bench;
use crate::spread::Spread;

/// Who contends: so many tasks in each of so many processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) contestant: &'static str,
    pub(crate) processes: usize,
    pub(crate) tasks: usize,
    pub(crate) body: Duration,
}

/// A critical section, in nanoseconds of the machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Section {
    process: usize,
    asked: f64,
    begun: f64,
    ended: f64,
}

/// What happened while it counted, in the order of the sections.
#[derive(Debug)]
pub(crate) struct Heat {
    sections: Vec<Section>,
    processes: usize,
    length: f64,
}

impl Crowd {
    /// Lets them contend for a while.
    pub(crate) async fn contend(self, bench: &Bench) -> Heat {
        let starting: JoinSet<_> = (0..self.processes)
            .map(|_| start(self, bench.url()))
            .collect();
        let mut contenders = starting.join_all().await;
        let start = now() + 1e7;
        let from = start + bench.effort.warm_up.as_nanos() as f64;
        let end = from + bench.effort.heat.as_nanos() as f64;
        for (child, _) in &mut contenders {
            let mut stdin = child.stdin.take().expect("a pipe");
            let line = format!("{start:.0} {end:.0}\n");
            stdin.write_all(line.as_bytes()).await.expect("a reader");
        }
        let mut sections = Vec::new();
        for (process, (mut child, mut stdout)) in contenders.into_iter().enumerate() {
            let mut lines = String::new();
            stdout.read_to_string(&mut lines).await.expect("text");
            sections.extend(lines.lines().map(|line| parse(process, line)));
            let status = child.wait().await.expect("the end of a contender");
            assert!(status.success(), "a contender failed: {status}");
        }
        sections.sort_by(|one, other| one.begun.total_cmp(&other.begun));
        for pair in sections.windows(2) {
            assert!(pair[0].ended <= pair[1].begun, "two bodies overlap");
        }
        sections.retain(|section| (from..end).contains(&section.begun));
        Heat {
            sections,
            processes: self.processes,
            length: end - from,
        }
    }
}

async fn start(crowd: Crowd, url: String) -> (Child, BufReader<ChildStdout>) {
    let Crowd {
        contestant,
        tasks,
        body,
        ..
    } = crowd;
    let mut child = Command::new(env!("CARGO_BIN_EXE_contender"))
        .args([
            contestant,
            &tasks.to_string(),
            &body.as_micros().to_string(),
        ])
        .env("DLOCK_URL", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process for the contender");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    stdout.read_line(&mut line).await.expect("a line");
    assert_eq!(line.trim(), "ready");
    (child, stdout)
}

fn parse(process: usize, line: &str) -> Section {
    let mut moments = line
        .split(' ')
        .map(|moment| moment.parse().expect("a moment"));
    let mut moment = || moments.next().expect("three moments");
    Section {
        process,
        asked: moment(),
        begun: moment(),
        ended: moment(),
    }
}

impl Heat {
    /// Sections a second.
    pub(crate) fn rate(&self) -> f64 {
        self.sections.len() as f64 * 1e9 / self.length
    }

    /// The part of the time in which a body ran.
    pub(crate) fn in_use(&self) -> f64 {
        let bodies = self.sections.iter();
        let used: f64 = bodies.map(|section| section.ended - section.begun).sum();
        used / self.length
    }

    /// From asking for the lock to the begin of the body.
    pub(crate) fn waits(&self) -> Spread {
        let sections = self.sections.iter();
        Spread::new(sections.map(|section| section.begun - section.asked))
    }

    /// How many sections each process had.
    pub(crate) fn shares(&self) -> Spread {
        let count = |process| {
            let its = self.sections.iter().filter(|of| of.process == process);
            its.count() as f64
        };
        Spread::new((0..self.processes).map(count))
    }

    /// How long a process that waited had to wait once another had ended a
    /// body: from the first such end to the begin of its own.
    pub(crate) fn hand_overs(&self) -> Spread {
        let waited = self.sections.iter().enumerate().filter_map(|(index, own)| {
            let before = self.sections[..index].iter().rev();
            let since = before.take_while(|other| other.ended >= own.asked);
            let of_others = since.filter(|other| other.process != own.process);
            of_others.last().map(|first| own.begun - first.ended)
        });
        Spread::new(waited)
    }
}

fn now() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the monotonic clock");
    Duration::from(now).as_nanos() as f64
}
