//! A real server of a test's own: on free ports, and on the same again after a restart.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::Instant;

use tokio::sync::Mutex;
use tokio::time::sleep;

use super::dir::TempDir;
use super::machine::{self, Machine};
use super::process::Process;
use super::start::{ATTEMPTS, NotUp, all_up};
use super::wait::{HANG, STEP};

/// What is particular to one kind of server.
pub(crate) trait Kind {
    /// How it is called, and which package it is in.
    const NAME: &'static str;
    const PACKAGE: &'static str;

    /// Where clients find it.
    fn port(&self) -> u16;

    /// Takes ports that were free a moment ago.
    fn take_ports(&mut self);

    /// Makes in this folder, which is its own, what it needs before it is first run.
    fn install(&self, dir: &Path) {
        let _ = dir;
    }

    /// Runs it there. What it prints is its log.
    fn command(&self, dir: &Path) -> Command;

    /// Where it runs, if that can be spoiled.
    fn machine(&self) -> Option<&Machine> {
        None
    }

    /// Whether what answers on its port is this process, in this folder: it may be another
    /// server, which has taken the port. If not, what came in place of its answer.
    async fn answers(&self, process: u32, dir: &Path) -> Result<(), String>;

    /// Ends it as a failure of its machine does: what was not on disk is lost.
    fn kill(process: &mut Process) {
        process.kill();
    }

    /// Stops it, with all its processes that answer somebody.
    fn pause(process: &Process) {
        process.pause();
    }

    /// Ends that.
    fn resume(process: &Process) {
        process.resume();
    }
}

/// A server that runs, killed on drop.
#[derive(Debug)]
pub(crate) struct Server<K: Kind> {
    pub(super) kind: K,
    pub(super) dir: TempDir,
    pub(super) process: Option<Process>,
}

impl<K: Kind> Server<K> {
    pub(crate) async fn of(kind: K) -> Self {
        let mut server = Self::not_started(kind);
        for attempt in 1..=ATTEMPTS {
            server.spawn();
            if all_up(std::slice::from_mut(&mut server), attempt).await {
                return server;
            }
            server.is_new();
        }
        panic!("{} did not start in {ATTEMPTS} attempts", K::NAME);
    }

    /// Nothing is left of what did not serve, and somebody else may have its ports.
    fn is_new(&mut self) {
        self.kill();
        self.kind.take_ports();
        self.dir = TempDir::default();
        self.kind.install(self.dir.path());
    }

    pub(super) fn not_started(mut kind: K) -> Self {
        kind.take_ports();
        let dir = TempDir::default();
        kind.install(dir.path());
        Self {
            kind,
            dir,
            process: None,
        }
    }

    /// Where it keeps what it keeps.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it has printed since its last start.
    pub(super) fn logged(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    pub(super) fn spawn(&mut self) {
        let mut command = self.kind.command(self.dir());
        if let Some(machine) = self.kind.machine() {
            command = machine.runs(&command);
        }
        let log = File::create(self.dir().join("log")).expect("our own directory");
        let both = log.try_clone().expect("a file");
        command.stdin(Stdio::null()).stdout(both).stderr(log);
        let process = Process::spawn(command);
        let needed = || format!("{} is needed: apt-get install {}", K::NAME, K::PACKAGE);
        self.process = Some(process.unwrap_or_else(|error| panic!("{error}; {}", needed())));
    }

    pub(crate) fn port(&self) -> u16 {
        self.kind.port()
    }

    /// Connections break, and what was not on disk is lost.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            K::kill(&mut process);
            machine::forget_clock(process.id());
        }
    }

    /// Its files can grow no longer than so many bytes, as if its disk were full: it
    /// needs a [`Machine`].
    pub(crate) fn fill_disk(&self, bytes: u64) {
        machine::fill_disk(self.running().id(), bytes);
    }

    /// There is room again. Some end when there is none: those are started again.
    pub(crate) async fn empty_disk(&mut self) {
        machine::empty_disk(self.running().id());
        match self.is_up(ATTEMPTS).await {
            Ok(()) => {}
            Err(NotUp::Ended(_)) => self.restart().await,
            Err(why) => panic!("it has room and does not serve: {}", self.told(&why)),
        }
    }

    /// Waits until it ends by itself.
    pub(crate) async fn has_ended(&mut self) {
        let process = self.process.take();
        process.expect("a running server").end().await;
    }

    /// Kills it if it runs, and starts it again with what it kept on disk. Its port is
    /// ours but for the moment in which it was down, and what is left of it may keep it
    /// from starting for a while.
    pub(crate) async fn restart(&mut self) {
        let (mut begun, mut attempt) = (Instant::now(), 1);
        loop {
            self.kill();
            self.spawn();
            // A busy machine takes its time, and what is killed has to begin anew.
            let Err(why) = self.is_up(ATTEMPTS).await else {
                return;
            };
            let told = self.told(&why);
            match why {
                NotUp::Ended(_) => assert!(begun.elapsed() < HANG, "it ends again: {told}"),
                NotUp::Silent(_) => {
                    assert!(attempt < ATTEMPTS, "it does not serve again: {told}");
                    eprintln!("attempt {attempt} of {ATTEMPTS} to start it again: {told}");
                    attempt += 1;
                    begun = Instant::now();
                }
            }
            sleep(STEP).await;
        }
    }

    /// `SIGSTOP`: connections stay open and nothing is answered.
    pub(crate) fn pause(&self) {
        K::pause(self.running());
    }

    /// `SIGCONT`.
    pub(crate) fn resume(&self) {
        K::resume(self.running());
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    fn running(&self) -> &Process {
        self.process.as_ref().expect("a running server")
    }
}

/// Before its folder is removed.
impl<K: Kind> Drop for Server<K> {
    fn drop(&mut self) {
        self.kill();
    }
}

impl<K: Kind> Deref for Server<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.kind
    }
}

impl<K: Kind> DerefMut for Server<K> {
    fn deref_mut(&mut self) -> &mut K {
        &mut self.kind
    }
}

/// What all tests share that put nothing in its way. It ends with the last of those
/// that run at the same time.
pub(crate) struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    pub(crate) const fn none() -> Self {
        Self(Mutex::const_new(Weak::new()))
    }

    pub(crate) async fn or_start(&self, start: impl Future<Output = T>) -> Arc<T> {
        let mut shared = self.0.lock().await;
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(start.await);
        *shared = Arc::downgrade(&server);
        server
    }
}
