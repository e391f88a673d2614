//! The start of servers: how long they are waited for, and what is told of those that do not
//! serve.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::server::{Kind, Server};
use super::wait::STEP;

/// So often servers are started, each time on other ports, before the test fails.
pub(super) const ATTEMPTS: u32 = 3;

/// So long a server may be silent, the first time that it is started: on a busy machine a
/// Java machine takes a while. The second time it has twice as long, and so on.
const PATIENCE: Duration = Duration::from_secs(60);

/// So long it has for one answer. One connection that nobody serves is not the end of it.
const ANSWER: Duration = Duration::from_secs(10);

/// Longer than one look at it can take. What takes longer is a machine that stands still, and
/// the server has stood still with it: that does not count.
const LOOK: Duration = Duration::from_secs(15);

/// Why a server does not serve.
pub(super) enum NotUp {
    /// It has ended, as it does when another has its port.
    Ended(String),
    /// It runs. What there was in place of an answer.
    Silent(String),
}

impl<K: Kind> Server<K> {
    /// Whether it serves now.
    async fn look(&mut self) -> Result<(), NotUp> {
        let Self { kind, dir, process } = self;
        let Some(process) = process else {
            return Err(NotUp::Ended("it was ended".to_owned()));
        };
        if let Some(status) = process.ended() {
            return Err(NotUp::Ended(status.to_string()));
        }
        let answer = timeout(ANSWER, kind.answers(process.id(), dir.path())).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {ANSWER:?}")));
        answer.map_err(NotUp::Silent)
    }

    /// Waits until it serves or has ended, for as long as at this attempt to start it.
    pub(super) async fn is_up(&mut self, attempt: u32) -> Result<(), NotUp> {
        let (mut left, mut looked) = (PATIENCE * attempt, Instant::now());
        loop {
            match self.look().await {
                Err(NotUp::Silent(_)) if !left.is_zero() => {}
                done => return done,
            }
            sleep(STEP).await;
            left = left.saturating_sub(looked.elapsed().min(LOOK));
            looked = Instant::now();
        }
    }

    /// All that can be seen of one that does not serve.
    pub(super) fn told(&self, why: &NotUp) -> String {
        let (name, port) = (K::NAME, self.port());
        let mut told = match (why, &self.process) {
            (NotUp::Silent(instead), Some(process)) => {
                let process = process.id();
                let state = state(process);
                format!("{name}, process {process} on port {port}: {instead}\n{state}")
            }
            (NotUp::Ended(how) | NotUp::Silent(how), _) => {
                format!("{name} on port {port} has ended: {how}\n")
            }
        };
        let log = self.logged();
        let lines: Vec<_> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(20)..];
        for line in last {
            let _ = writeln!(told, "    {line}");
        }
        if last.is_empty() {
            told.push_str("    it has printed nothing\n");
        }
        told
    }
}

/// Waits until all of these serve, which have been spawned. If not all of them do, it tells what
/// each of them does.
pub(super) async fn all_up<K: Kind>(servers: &mut [Server<K>], attempt: u32) -> bool {
    let mut all = Ok(());
    for server in servers.iter_mut() {
        all = server.is_up(attempt).await;
        if all.is_err() {
            break;
        }
    }
    if all.is_ok() {
        return true;
    }
    let mut told = format!("attempt {attempt} of {ATTEMPTS} to start {}:\n", K::NAME);
    for server in servers {
        match server.look().await {
            Ok(()) => told += &format!("{} on port {} serves\n", K::NAME, server.port()),
            Err(why) => told += &server.told(&why),
        }
    }
    eprintln!("{told}");
    false
}

/// What the kernel says of a process: what each of its threads does or waits for, and which
/// signals it has.
fn state(process: u32) -> String {
    let mut told = String::new();
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let status = read(format!("/proc/{process}/status"));
    let wanted = [
        "State",
        "PPid",
        "TracerPid",
        "Threads",
        "VmRSS",
        "SigPnd",
        "ShdPnd",
        "SigBlk",
        "SigIgn",
    ];
    for line in status.lines() {
        if wanted.iter().any(|name| line.starts_with(name)) {
            let _ = writeln!(told, "    {}", line.replace('\t', " "));
        }
    }
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let file = |name: &str| read(thread.path().join(name).display().to_string());
        let stat = file("stat");
        // Behind the name, which may hold anything.
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let state: Vec<_> = state.split(' ').collect();
        let field = |number: usize| state.get(number).copied().unwrap_or_default();
        let syscall = file("syscall");
        let _ = writeln!(
            told,
            "    thread {}: {}, {}+{} ticks, in {} of system call {}",
            file("comm").trim(),
            field(0),
            field(11),
            field(12),
            file("wchan"),
            syscall.split_whitespace().next().unwrap_or_default(),
        );
    }
    told
}
