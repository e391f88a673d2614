//! The watcher: a process of its own, which sends TERM and KILL to the command's group before the
//! deadline if the tool cannot, because it was killed or stopped.
//!
//! The tool sends it the new deadline when the lease is renewed, by a clock that is the same for
//! all processes of the machine. The watcher has a session of its own and blocks every signal that
//! it can: what ends the tool, its group or the terminal does not end the watcher.

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

/// How long before the loss the group is killed, by the watcher and by the tool: timers are always
/// a little late.
pub(super) const AHEAD: Duration = Duration::from_millis(10);

/// How much later than the tool the watcher sends TERM, so that it does not if the tool can.
const BEHIND_THE_TOOL: Duration = Duration::from_millis(200);

/// How often the watcher looks, after the tool has died, whether the group has ended.
const LOOK: Duration = Duration::from_millis(50);

/// What the tool tells the watcher: that it has sent TERM, and that the group has ended.
const WARNED: &str = "warned";
const DONE: &str = "done";

/// The watcher, as the tool sees it.
pub(super) struct Watcher {
    socket: UnixStream,
    child: Child,
    told: Option<Instant>,
}

impl Watcher {
    /// Starts the watcher, and returns when it watches.
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
        // The tool never waits for a watcher that does not read.
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            child,
            told: Some(deadline),
        })
    }

    /// Tells the watcher until when the lock is held, if this has changed.
    pub(super) fn held_until(&mut self, deadline: Instant) {
        if self.told != Some(deadline) {
            self.told = Some(deadline);
            self.tell(on_clock(deadline).as_nanos());
        }
    }

    /// Tells the watcher that the tool has sent TERM.
    pub(super) fn warned(&mut self) {
        self.tell(WARNED);
    }

    /// Whether the watcher has sent TERM, because this process was late.
    pub(super) fn has_warned(&mut self) -> bool {
        matches!(self.socket.read(&mut [0]), Ok(1))
    }

    /// Tells the watcher that the group has ended, and reaps it.
    pub(super) fn done(mut self) {
        self.tell(DONE);
        drop(self.socket);
        // The watcher ends now, unless somebody has stopped it. A stopped watcher is not waited
        // for.
        for _ in 0..50 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether the watcher has ended, so that nobody watches.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    fn tell(&mut self, what: impl std::fmt::Display) {
        let _ = self.socket.write_all(format!("{what}\n").as_bytes());
    }
}

/// The monotonic clock: leases are measured by it, and it is the same for all processes of the
/// machine.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// A deadline by that clock. If this process is stopped between the two readings, the result is too
/// early, which is safe.
fn on_clock(deadline: Instant) -> Duration {
    let now = now();
    now + deadline
        .into_std()
        .saturating_duration_since(StdInstant::now())
}

/// The main function of the watcher.
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
    /// TERM has been sent, by the tool or by the watcher, or was due when the command had ended.
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
        // Also the TERM that every process gets when the system shuts down: the command has to end
        // before the watcher.
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

    /// Does what is due, and returns how long to wait until the next look. `None` when there is
    /// nothing left to do.
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
            // A group that has ended, and that the tool has not reaped yet, is not told.
            if self.group.is_alive() {
                // The tool has to know this before the command can end. If the tool was only late,
                // it goes on and may renew the lease; then it would not know why the command ended.
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

/// What has been read of the next line.
#[derive(Default)]
struct Heard(Vec<u8>);

impl Heard {
    /// Reads what is there, and returns whether more may come.
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

/// Waits for this time at most, and returns whether there is something to read.
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
    use std::fs;
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
            // Where processes are not shown, it seems to live.
            if fs::read("/proc/self/stat").is_err() {
                return;
            }
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
