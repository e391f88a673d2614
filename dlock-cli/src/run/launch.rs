//! The launcher: the tool's own program, which waits in a process group of its own until it
//! may become the command.
//!
//! So no command runs before its group is watched and has the terminal, and nothing has to be
//! done between `fork` and `exec`, which safe code cannot. Its standard input is a socket to
//! the tool; over that comes the standard input of the command, and that means: go. A tool
//! that died has said nothing, and nothing is run.

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

/// The launcher, seen by the tool.
pub(super) struct Launcher {
    pub(super) child: Child,
    pub(super) group: Group,
    socket: UnixStream,
}

/// A command that runs this program in another mode.
pub(super) fn oneself() -> io::Result<Command> {
    // Also there when the file has been replaced since.
    let own = "/proc/self/exe";
    let mut command = match std::fs::exists(own) {
        Ok(true) => Command::new(own),
        _ => Command::new(std::env::current_exe()?),
    };
    command.arg0("dlock");
    Ok(command)
}

impl Launcher {
    /// Starts it. In the environment of the command these are set, or are not there.
    pub(super) fn start(
        command: &[OsString],
        variables: &[(&str, Option<String>)],
    ) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let mut launcher = oneself()?;
        for (name, value) in variables {
            match value {
                Some(value) => launcher.env(name, value),
                None => launcher.env_remove(name),
            };
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

    /// Becomes the command.
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

    /// Why it could not become the command, when it has ended.
    pub(super) fn refusal(&mut self) -> Option<io::Error> {
        let mut number = [0; 4];
        self.socket.read_exact(&mut number).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
    }
}

/// In the launcher.
pub(crate) fn main(command: impl Iterator<Item = OsString>) -> ExitCode {
    match become_command(command) {
        // The tool has gone.
        Ok(()) => Exit::OK.into(),
        Err(_) => Exit::CANNOT_RUN.into(),
    }
}

fn become_command(mut command: impl Iterator<Item = OsString>) -> io::Result<()> {
    // Closed when the command begins.
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
