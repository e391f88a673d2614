//! The terminal. The command is in its foreground while it runs there.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::process::{
    Pid, Signal, getpgrp, getpid, getppid, getsid, kill_current_process_group, kill_process,
};
use rustix::termios::{
    OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp,
};

use super::group::Group;

/// The controlling terminal of this process.
pub(super) struct Terminal {
    device: File,
    /// Whether the command's group is in the foreground.
    given: bool,
    /// The settings from before the command ran.
    before: Option<Termios>,
}

impl Terminal {
    pub(super) fn open() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let device: OwnedFd = open("/dev/tty", flags, Mode::empty()).ok()?;
        Some(Self {
            before: tcgetattr(&device).ok(),
            device: device.into(),
            given: false,
        })
    }

    /// Whether this process is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.device).is_ok_and(|group| group == getpgrp())
    }

    pub(super) fn is_given(&self) -> bool {
        self.given
    }

    /// Puts the command into the foreground, if this process is in the foreground.
    pub(super) fn give(&mut self, group: Group) -> bool {
        self.given = self.is_ours() && self.put_forward(group.id());
        self.given
    }

    /// Puts this process back into the foreground, if the command has it.
    pub(super) fn take_back(&mut self) {
        if self.given {
            self.given = false;
            self.put_forward(getpgrp());
        }
    }

    /// Restores the settings from before the command, which a killed command could not restore
    /// itself.
    pub(super) fn restore(&self) {
        if let Some(before) = &self.before {
            let _ = stopping_nobody(|| tcsetattr(&self.device, OptionalActions::Now, before));
        }
    }

    fn put_forward(&self, group: Pid) -> bool {
        stopping_nobody(|| tcsetpgrp(&self.device, group)).is_ok()
    }
}

/// Whether the command should have the terminal: its input is a terminal, and its output is not a
/// pipe. What reads from the pipe may want the keys, as a pager does.
pub(super) fn reads_from_it() -> bool {
    let into_pipe = fstat(io::stdout())
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    isatty(io::stdin().as_fd()) && !into_pipe
}

/// Runs `set` while TTOU is blocked. Otherwise, a background process that changes the terminal or
/// writes to it could be stopped.
pub(crate) fn stopping_nobody<T>(set: impl FnOnce() -> T) -> T {
    let mut signals = SigSet::empty();
    signals.add(NixSignal::SIGTTOU);
    let blocked = signals.thread_block();
    let done = set();
    if blocked.is_ok() {
        let _ = signals.thread_unblock();
    }
    done
}

/// Whether nobody could continue this process if it stopped. A shell with job control could: it is
/// the parent, in the same session.
pub(super) fn is_alone() -> bool {
    let parents = getppid().and_then(|parent| getsid(Some(parent)).ok());
    parents.is_none() || parents != getsid(None).ok()
}

/// Sends TSTP to the whole job, as the terminal does for `^Z`: also to the other parts of a
/// pipeline or script.
pub(crate) fn stop_job() {
    let _ = kill_current_process_group(Signal::TSTP);
}

/// Stops this process, and returns when it is continued. Does nothing if nobody could continue it.
pub(crate) fn stop_oneself() {
    if !is_alone() {
        let _ = kill_process(getpid(), Signal::STOP);
    }
}
