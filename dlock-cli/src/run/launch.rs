//! The launcher: this program in another mode. It waits in a process group of its own until the
//! tool lets it become the command.
//!
//! In this way, the command does not run before its group is watched and has the terminal, and
//! nothing has to be done between `fork` and `exec`, which needs `unsafe`. The standard input of
//! the launcher is a socket to the tool. The tool sends the standard input of the command over it,
//! as a file descriptor, and this means: go. If the tool dies before, the launcher reads the end of
//! the stream and runs nothing.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::group::Group;
use crate::exit::Exit;

pub(crate) const MODE: &str = "__launch";

/// The launcher, as the tool sees it.
pub(super) struct Launcher {
    pub(super) child: Child,
    pub(super) group: Group,
    socket: UnixStream,
}

/// A command that runs this program in another mode.
pub(super) fn oneself() -> io::Result<Command> {
    // This works also if the file of the program was replaced meanwhile.
    let own = "/proc/self/exe";
    let mut command = match std::fs::exists(own) {
        Ok(true) => Command::new(own),
        _ => Command::new(std::env::current_exe()?),
    };
    command.arg0("dlock");
    Ok(command)
}

impl Launcher {
    /// Starts the launcher. The command has these variables in its environment.
    pub(super) fn start(command: &[OsString], variables: &[(&str, String)]) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let mut launcher = oneself()?;
        for (name, value) in variables {
            launcher.env(name, value);
        }
        let child = launcher
            .arg(MODE)
            .args(command)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()?;
        let group = Group::of(child.id()).ok_or(io::ErrorKind::Other)?;
        Ok(Self {
            child,
            group,
            socket,
        })
    }

    /// Lets the launcher become the command.
    pub(super) fn go(&self) -> io::Result<()> {
        let stdin = io::stdin();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [stdin.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let go = [IoSlice::new(b"g")];
        sendmsg(&self.socket, &go, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Why the launcher could not become the command. Call this when the process has ended.
    pub(super) fn refusal(&mut self) -> Option<io::Error> {
        let mut number = [0; 4];
        self.socket.read_exact(&mut number).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
    }
}

/// The main function of the launcher.
pub(crate) fn main(command: impl Iterator<Item = OsString>) -> ExitCode {
    match become_command(command) {
        // The tool ended before it let the command start.
        Ok(()) => Exit::OK.into(),
        Err(_) => Exit::CANNOT_RUN.into(),
    }
}

fn become_command(mut command: impl Iterator<Item = OsString>) -> io::Result<()> {
    // It is closed on `exec`, so the command does not get it.
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    recvmsg(&socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let sent = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let (Some(stdin), Some(program)) = (sent, command.next()) else {
        return Ok(());
    };
    rustix::stdio::dup2_stdin(&stdin)?;
    drop(stdin);
    let error = Command::new(program).args(command).exec();
    let number = error.raw_os_error().unwrap_or_default();
    socket.write_all(&number.to_ne_bytes())
}
