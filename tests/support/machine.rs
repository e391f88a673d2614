//! The machine of a process, as far as a test can spoil it: its wall clock can be
//! set, and its disk be full. Neither takes rights that a container does not give.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::dir::TempDir;

/// Debian's libfaketime, in the variant for programs of many threads.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// A wall clock of its own. The monotonic clock is everybody's.
#[derive(Clone, Debug)]
pub(crate) struct Machine(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// By how many milliseconds the clock is ahead.
    ahead: Mutex<i64>,
    dir: TempDir,
}

impl Default for Machine {
    fn default() -> Self {
        let machine = Self(Arc::new(Shared {
            ahead: Mutex::new(0),
            dir: TempDir::default(),
        }));
        machine.write(0);
        machine
    }
}

impl Machine {
    /// The same command, run here. Tools on the way to the program itself, which may
    /// change the user, are not.
    pub(crate) fn runs(&self, command: &Command) -> Command {
        let library = Path::new(LIBRARY);
        let library = match library.exists() {
            true => library.to_owned(),
            false => elsewhere().expect("libfaketime is needed: apt-get install faketime"),
        };
        let mut words = vec![command.get_program()];
        words.extend(command.get_args());
        let program = words.iter().position(|word| *word == "--");
        let program = program.map_or(0, |at| at + 1);
        let (before, program) = words.split_at(program);
        let mut all = before.iter().copied();
        let mut here = match all.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(all).arg("env");
                command
            }
            None => Command::new("env"),
        };
        // Redis has an allocator that asks for the time before there is one: libc's
        // own comes before it. A file that is too long is an error, not the end.
        here.arg("--ignore-signal=XFSZ")
            .arg(format!("LD_PRELOAD={}:libc.so.6", library.display()))
            .arg(format!("FAKETIME_TIMESTAMP_FILE={}", self.file().display()))
            .args(["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"])
            // Its remedy for other versions of glibc adds the faked clock to waits by
            // the monotonic one: those of a Java machine end late, or never.
            .arg("FAKETIME_FORCE_MONOTONIC_FIX=0")
            .args(program);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => here.env(name, value),
                None => here.env_remove(name),
            };
        }
        here
    }

    /// Sets the clock forward.
    pub(crate) fn clock_ahead(&self, by: Duration) {
        self.step(i64::try_from(by.as_millis()).expect("a short time"));
    }

    /// Sets the clock back.
    pub(crate) fn clock_back(&self, by: Duration) {
        self.step(-i64::try_from(by.as_millis()).expect("a short time"));
    }

    /// What its clock shows, since 1970.
    pub(crate) fn now(&self) -> Duration {
        let ahead = *self.0.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let by = Duration::from_millis(ahead.unsigned_abs());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("a time after 1970");
        if ahead < 0 { now - by } else { now + by }
    }

    /// A program here that asked for the time after `before`, and has told this just
    /// now, goes by this clock.
    pub(crate) fn is_between(&self, before: Duration, told: Duration) {
        let (rounded, after) = (Duration::from_millis(1), self.now());
        let is_right = before <= told + rounded && told <= after + rounded;
        assert!(is_right, "{told:?} is not between {before:?} and {after:?}");
    }

    fn step(&self, by: i64) {
        let mut ahead = self.0.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        *ahead += by;
        self.write(*ahead);
    }

    fn file(&self) -> PathBuf {
        self.0.dir.path().join("ahead")
    }

    /// In one piece: it is read whenever somebody looks at the clock.
    fn write(&self, ahead: i64) {
        let new = self.0.dir.path().join("new");
        let written = std::fs::write(&new, format!("{:+.3}\n", ahead as f64 / 1000.0));
        let moved = written.and_then(|()| std::fs::rename(&new, self.file()));
        moved.expect("our own directory");
    }
}

/// On other processors, and other systems.
fn elsewhere() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let all = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let mut found = all.filter(|path| path.exists());
    found.next()
}

/// What the clock of a process that was killed leaves behind.
pub(crate) fn forget_clock(process: u32) {
    for name in ["faketime_shm_", "sem.faketime_sem_"] {
        // Most processes have had none.
        let _ = std::fs::remove_file(format!("/dev/shm/{name}{process}"));
    }
}

/// From now on none of this process and its children can write a file beyond so many
/// bytes, as if its disk were full.
pub(crate) fn fill_disk(process: u32, bytes: u64) {
    limit_files(process, &bytes.to_string());
}

/// Ends it.
pub(crate) fn empty_disk(process: u32) {
    limit_files(process, "unlimited");
}

/// Children come after their parent, so that none is missed that it makes meanwhile.
fn limit_files(process: u32, bytes: &str) {
    let all = std::iter::once(process).chain(std::iter::once_with(|| children(process)).flatten());
    for process in all {
        // Who has ended needs no disk.
        let Some((user, group)) = owner(process) else {
            continue;
        };
        // A process may be limited by its own user.
        let mut limit = Command::new("prlimit");
        if nix::unistd::geteuid().as_raw() != user {
            limit = Command::new("setpriv");
            limit.args([format!("--reuid={user}"), format!("--regid={group}")]);
            limit.args(["--clear-groups", "prlimit"]);
        }
        limit
            .args(["--pid", &process.to_string()])
            .arg(format!("--fsize={bytes}:"));
        let limited = limit.output().expect("`prlimit` of util-linux");
        let errors = String::from_utf8_lossy(&limited.stderr);
        let gone = owner(process).is_none();
        assert!(limited.status.success() || gone, "prlimit: {errors}");
    }
}

fn children(process: u32) -> Vec<u32> {
    let file = format!("/proc/{process}/task/{process}/children");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let children = text.split_whitespace();
    children.filter_map(|child| child.parse().ok()).collect()
}

/// The user and group of a process; none if nothing but its end is left of it.
fn owner(process: u32) -> Option<(u32, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let id = |name: &str| line(name)?.split_whitespace().next()?.parse().ok();
    let has_ended = line("State:")?.trim_start().starts_with(['Z', 'X']);
    let owner = (id("Uid:")?, id("Gid:")?);
    (!has_ended).then_some(owner)
}
