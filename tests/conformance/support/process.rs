//! Processes that cannot outlive the test, and the signals sent to them.

use std::ffi::OsStr;
use std::io;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::wait::{eventually, eventually_blocking};

/// A child process: killed and reaped on drop.
#[derive(Debug)]
pub struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command that was made by [`command`].
    pub fn spawn(command: Command) -> io::Result<Self> {
        Ok(Self {
            child: spawn_from_lasting_thread(command)?,
            ended: None,
        })
    }

    /// Its standard output and error, if the command made pipes of them.
    pub fn pipes(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// Its standard input, if the command made a pipe of it.
    pub fn input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.id()).expect("a process id"))
    }

    /// How it ended, or `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("the state of a child process");
        }
        self.ended
    }

    /// Waits until it ends by itself.
    pub async fn end(&mut self) -> ExitStatus {
        eventually("the process has ended", async || self.ended()).await
    }

    /// `SIGKILL`, and returns once it is dead.
    pub fn kill(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::SIGKILL);
            self.ended = Some(self.child.wait().expect("the end of a child process"));
        }
    }

    /// `SIGQUIT`, and returns once it has ended. For a server of several processes, which would
    /// not end with it after a `SIGKILL`.
    pub fn quit(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::SIGQUIT);
            eventually_blocking("the process has ended", || self.ended());
        }
    }

    /// `SIGTERM`: asks it to end.
    pub fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// `SIGSTOP`, and returns once it has stopped: it then does nothing until
    /// [`resume`](Self::resume).
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        eventually_blocking("the process has stopped", || {
            let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
            match waitid(Id::Pid(self.pid()), flags).expect("the state of a child process") {
                WaitStatus::Stopped(..) => Some(()),
                _ => None,
            }
        });
    }

    /// `SIGCONT`.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// The same for a server of several processes: first itself, so that it makes no more.
    pub fn pause_with_children(&self) {
        self.pause();
        for child in self.children() {
            // One that has ended does nothing either.
            if kill(child, Signal::SIGSTOP).is_ok() {
                eventually_blocking("the child has stopped", || {
                    does_nothing(child).then_some(())
                });
            }
        }
    }

    /// Ends [`pause_with_children`](Self::pause_with_children).
    pub fn resume_with_children(&self) {
        for child in self.children() {
            let _ = kill(child, Signal::SIGCONT);
        }
        self.resume();
    }

    fn children(&self) -> Vec<Pid> {
        let id = self.id();
        let file = format!("/proc/{id}/task/{id}/children");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let ids = text.split_whitespace().filter_map(|id| id.parse().ok());
        ids.map(Pid::from_raw).collect()
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap_or_else(|error| panic!("cannot send {signal}: {error}"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether a process is stopped or has ended.
fn does_nothing(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Its name stands before that, in parentheses.
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_none_or(|state| state.starts_with(['T', 't', 'Z', 'X']))
}

/// A command whose process the kernel kills when this process dies, since no `Drop` runs when a
/// test run itself is killed. If the tool for this is missing, only `Drop` kills it.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    static SETPRIV: LazyLock<bool> = LazyLock::new(|| {
        Command::new("setpriv")
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    });
    if !*SETPRIV {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Spawns from a thread that lives as long as this process: for the kernel, the parent is the
/// thread, and each test has its own thread.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                // The test that asked may have failed meanwhile.
                let _ = reply.send(command.spawn());
            }
        });
        orders
    });
    let (reply, answer) = channel();
    SPAWNER.send((command, reply)).expect("the spawning thread");
    answer.recv().expect("the spawning thread")
}
