//! The watcher: a process of its own, which ends the command's group at the deadline if the
//! tool was killed or stopped and so cannot.
//!
//! The tool tells it the deadline, by the clock that all processes of the machine share, each
//! time that the lease is renewed. It has a session of its own, so that neither the terminal
//! nor who ends the tool's group ends it, and lets every signal pass that it can.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant as StdInstant};

use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, setsid};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::group::Group;
use super::launch::oneself;
use crate::exit::Exit;

pub(crate) const MODE: &str = "__watch";

/// A group is killed so long before its lock is lost, here and by the tool: a timer is late
/// by something.
pub(super) const AHEAD: Duration = Duration::from_millis(10);

/// How much later than the tool it sends TERM: the tool may be about to.
const BEHIND_THE_TOOL: Duration = Duration::from_millis(200);

/// How often it looks whether the group of a tool that died has ended.
const LOOK: Duration = Duration::from_millis(50);

/// That the tool has sent TERM, and that there is nothing left to watch.
const WARNED: &str = "warned";
const DONE: &str = "done";

/// The watcher, seen by the tool.
pub(super) struct Watcher {
    socket: UnixStream,
    child: Child,
    told: Option<Instant>,
}

impl Watcher {
    /// Returns when it watches.
    pub(super) fn start(
        group: Group,
        deadline: Instant,
        kill_after: Duration,
        kills: bool,
    ) -> io::Result<Self> {
        let (mut socket, theirs) = UnixStream::pair()?;
        let child = oneself()?
            .arg(MODE)
            .arg(group.id().as_raw_nonzero().to_string())
            .arg(kill_after.as_nanos().to_string())
            .arg(kills.to_string())
            .arg(on_clock(deadline).as_nanos().to_string())
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        socket.read_exact(&mut [0])?;
        // One that does not read is not waited for.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            child,
            told: Some(deadline),
        })
    }

    /// The lock is held until then.
    pub(super) fn held_until(&mut self, deadline: Instant) {
        if self.told != Some(deadline) {
            self.told = Some(deadline);
            self.tell(on_clock(deadline).as_nanos());
        }
    }

    /// The tool has sent TERM.
    pub(super) fn warned(&mut self) {
        self.tell(WARNED);
    }

    /// Whether it has sent TERM, as this process was late.
    pub(super) fn has_warned(&mut self) -> bool {
        matches!(self.socket.read(&mut [0]), Ok(1))
    }

    /// The group has ended.
    pub(super) fn done(mut self) {
        self.tell(DONE);
        drop(self.socket);
        // It has nothing left to do but to end; one that was stopped is left alone.
        for _ in 0..50 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether it has ended by itself, so that nobody watches.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn tell(&mut self, what: impl std::fmt::Display) {
        let _ = self.socket.write_all(format!("{what}\n").as_bytes());
    }
}

/// The clock that is the same for all processes of the machine, and the one that leases are
/// measured by.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// A deadline by that clock. Whoever is stopped between the two looks gets an earlier one.
fn on_clock(deadline: Instant) -> Duration {
    let now = now();
    now + deadline
        .into_std()
        .saturating_duration_since(StdInstant::now())
}

/// In the watcher.
pub(crate) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    match Watch::read(arguments).map(Watch::until_over) {
        Some(Ok(())) => Exit::OK.into(),
        _ => Exit::INTERNAL.into(),
    }
}

struct Watch {
    group: Group,
    kill_after: Duration,
    /// Whether KILL follows TERM.
    kills: bool,
    deadline: Duration,
    /// TERM has been sent, by the tool or from here, or was due when the command had ended.
    warned: bool,
    done: bool,
}

impl Watch {
    fn read(arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        let arguments: Vec<_> = arguments.map(OsString::into_string).collect();
        let [Ok(group), Ok(kill_after), Ok(kills), Ok(deadline)] = &arguments[..] else {
            return None;
        };
        Some(Self {
            group: Group::of(group.parse().ok()?)?,
            kill_after: Duration::from_nanos(kill_after.parse().ok()?),
            kills: kills.parse().ok()?,
            deadline: Duration::from_nanos(deadline.parse().ok()?),
            warned: false,
            done: false,
        })
    }

    fn until_over(mut self) -> io::Result<()> {
        // Those of a system that shuts down, too: the command is ended first.
        let _ = SigSet::all().thread_block();
        let _ = setsid();
        let mut tool = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // The tool may be dead by now.
        let _ = tool.write_all(b"w");
        let mut heard = Heard::default();
        let mut tool = Some(tool);
        loop {
            let Some(wait) = self.act(tool.as_mut()) else {
                return Ok(());
            };
            match &mut tool {
                Some(socket) if wait_for(socket, wait)? => {
                    if !heard.hear(socket, |line| self.hear(line)) {
                        tool = None;
                    }
                }
                Some(_) => {}
                None => std::thread::sleep(wait.min(LOOK)),
            }
        }
    }

    fn hear(&mut self, line: &str) {
        match line {
            WARNED => self.warned = true,
            DONE => self.done = true,
            deadline => {
                if let Ok(deadline) = deadline.parse() {
                    self.deadline = self.deadline.max(Duration::from_nanos(deadline));
                }
            }
        }
    }

    /// Does what is due, and says when to look again; `None` when there is nothing left.
    fn act(&mut self, tool: Option<&mut UnixStream>) -> Option<Duration> {
        if self.done || !self.group.exists() {
            return None;
        }
        let now = now();
        let late = match tool {
            Some(_) => BEHIND_THE_TOOL.min(self.kill_after / 2),
            None => Duration::ZERO,
        };
        let warn_at = self.deadline.saturating_sub(self.kill_after) + late;
        let kill_at = self.deadline.saturating_sub(AHEAD);
        if self.kills && now >= kill_at {
            self.group.send(Signal::KILL);
            return None;
        }
        if !self.warned && now >= warn_at {
            self.warned = true;
            // One that has ended, and waits for the tool to see it, is not told.
            if self.group.is_alive() {
                // Before the command can end: a tool that goes on may renew the lease, and would
                // not know why it ended.
                if let Some(tool) = tool {
                    let _ = tool.write_all(b"w");
                }
                self.group.terminate();
            }
        }
        let next = match (self.warned, self.kills) {
            (false, true) => warn_at.min(kill_at),
            (false, false) => warn_at,
            (true, true) => kill_at,
            (true, false) => return None,
        };
        Some(next.saturating_sub(now))
    }
}

/// What has been read of the line that comes.
#[derive(Default)]
struct Heard(Vec<u8>);

impl Heard {
    /// Reads what is there, and says whether more may come.
    fn hear(&mut self, socket: &mut UnixStream, mut line: impl FnMut(&str)) -> bool {
        let mut buffer = [0; 1024];
        match socket.read(&mut buffer) {
            Ok(0) => return false,
            Ok(length) => self.0.extend(&buffer[..length]),
            Err(error) => return error.kind() == io::ErrorKind::Interrupted,
        }
        while let Some(end) = self.0.iter().position(|&byte| byte == b'\n') {
            let whole: Vec<_> = self.0.drain(..=end).collect();
            line(String::from_utf8_lossy(&whole).trim_end());
        }
        true
    }
}

/// Whether there is something to read, after this time at most.
fn wait_for(socket: &UnixStream, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    let mut readable = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut readable, Some(&time)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    /// A tool that stands still, and its watcher, when TERM is due.
    struct Scene {
        command: Child,
        watch: Watch,
        watcher: UnixStream,
        tool: UnixStream,
    }

    impl Scene {
        fn of(command: &str, kills: bool) -> Self {
            let mut child = Command::new(command);
            let command = child.arg("600").process_group(0).spawn();
            let command = command.expect("the command runs");
            let (watcher, tool) = UnixStream::pair().expect("two ends");
            tool.set_nonblocking(true).expect("it is a socket");
            let watch = Watch {
                group: Group::of(command.id()).expect("a number"),
                kill_after: Duration::from_secs(3_600),
                kills,
                deadline: now() + Duration::from_secs(1_800),
                warned: false,
                done: false,
            };
            Self {
                command,
                watch,
                watcher,
                tool,
            }
        }

        fn act(&mut self) -> Option<Duration> {
            self.watch.act(Some(&mut self.watcher))
        }

        fn is_told(&mut self) -> bool {
            matches!(self.tool.read(&mut [0]), Ok(1))
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = self.command.kill();
            let _ = self.command.wait();
        }
    }

    #[test]
    fn a_command_is_told_to_end_when_that_is_due() {
        let mut scene = Scene::of("sleep", true);
        let next = scene.act().expect("KILL is to come");
        assert!(scene.is_told());
        assert!(next > Duration::from_secs(1_000), "{next:?}");
        let status = scene.command.wait().expect("it ends");
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(Signal::TERM.as_raw()));
    }

    #[test]
    fn one_that_has_ended_unseen_is_not_told_and_still_watched_to_the_end() {
        for kills in [true, false] {
            let mut scene = Scene::of("true", kills);
            while scene.watch.group.is_alive() {
                std::thread::sleep(LOOK);
            }
            assert!(scene.watch.group.exists(), "nobody has reaped it");
            for _ in 0..2 {
                assert_eq!(scene.act().is_some(), kills);
            }
            assert!(!scene.is_told());
        }
    }
}
