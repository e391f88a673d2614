//! The tool as its users run it: as a process, on real servers.

mod ages;
mod breaking;
mod databases;
mod doctor;
mod doctor_of_etcd;
mod doctor_of_memcached;
mod exporter;
mod list;
mod losing;
mod on_lost;
mod others;
mod page;
mod picture;
mod repeat;
mod rights;
mod run;
mod screen;
mod stores;
mod terminal;
mod top;

#[allow(dead_code, reason = "the tool has no examples")]
#[path = "../../../tests/support/example.rs"]
mod example;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Output};

use serde_json::Value;

use support::dir::TempDir;
use support::process::command;
use support::program::Program;
use support::redis::{RedisServer, Setup};
use support::wait::{eventually, until};

/// With these, a tool does not take a standstill of the machine for an outage. It would warn of a
/// ttl of less than three request timeouts.
const PATIENT: [(&str, &str); 2] = [("DLOCK_REQUEST_TIMEOUT", "20s"), ("DLOCK_TTL", "1m")];

/// What a URL of ZooKeeper needs for it: a lease is shorter than its session.
#[cfg(feature = "zookeeper")]
const LONG_SESSION: &str = "session_timeout=1m";

/// The tool, patient, with this store and nothing else of ours in its environment.
fn dlock(url: &str, arguments: &[&str]) -> Command {
    let mut tool = with_defaults(url, arguments);
    tool.envs(PATIENT);
    tool
}

/// The same with the request timeout and the ttl that users have who set none.
fn with_defaults(url: &str, arguments: &[&str]) -> Command {
    // Whoever runs the tests may have signals ignored, as `nohup` does.
    let mut tool = command("env");
    tool.args(["--default-signal", env!("CARGO_BIN_EXE_dlock")]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DLOCK_") {
            tool.env_remove(name);
        }
    }
    tool.env("DLOCK_URL", url).args(arguments);
    tool
}

/// Somebody who holds this key.
async fn holder(url: &str, key: &str) -> Program {
    let arguments = ["run", key, "--", "sh", "-c", "echo pid $$; sleep 1000"];
    let program = Program::start(dlock(url, &arguments));
    printed(&program, "pid ").await;
    program
}

/// Runs it to its end.
async fn ran(command: Command) -> Output {
    Program::start(command).end().await
}

/// Runs what waits for a short time only. On a busy machine, that may be over before the store has
/// answered, which is told as an outage: then it is run again, a limited number of times.
async fn ran_in_time(command: impl Fn() -> Command) -> Output {
    let mut output = ran(command()).await;
    for _ in 0..10 {
        if code(&output) != 69 {
            break;
        }
        output = ran(command()).await;
    }
    assert_ne!(code(&output), 69, "{}", stderr(&output));
    output
}

/// What it prints for programs.
async fn json(url: &str, arguments: &[&str]) -> Value {
    let printed = ran(dlock(url, &[arguments, &["-o", "json"]].concat())).await;
    assert_eq!(code(&printed), 0, "{}", stderr(&printed));
    serde_json::from_str(&stdout(&printed)).expect("JSON")
}

/// What stands in this column of a table, in the rows below its head.
fn column(text: &str, name: &str) -> Vec<String> {
    let has_it = |line: &&str| line.split_whitespace().any(|word| word == name);
    let mut lines = text.lines().skip_while(|line| !has_it(line));
    let head = lines.next().unwrap_or_default();
    let at = head.find(name).unwrap_or_default();
    let rows = lines.take_while(|line| !line.is_empty());
    rows.map(|row| {
        let rest = row.chars().skip(at);
        rest.take_while(|c| !c.is_whitespace()).collect()
    })
    .collect()
}

/// A database in a folder of the test's own.
fn sqlite(dir: &TempDir) -> String {
    format!("sqlite:{}", dir.path().join("locks.db").display())
}

/// As a shell shows it.
fn code(output: &Output) -> i32 {
    let shown = String::from_utf8_lossy(&output.stderr);
    code_of(output.status).unwrap_or_else(|| panic!("{:?}: {shown}", output.status))
}

fn code_of(status: ExitStatus) -> Option<i32> {
    let by_signal = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(by_signal)
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Copies a program. By another process: what this one has open to write, children that other
/// tests start just then have too, and the kernel runs no program that somebody may write to.
fn copied(program: &str, to: &Path) {
    let copied = command("cp").arg(program).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "{program}");
}

async fn redis() -> RedisServer {
    Setup::default().start().await
}

/// Waits until the program has printed a line that begins so, and gives the rest of it.
async fn printed(program: &Program, begins: &str) -> String {
    let found = async || {
        let ended = program.is_silent();
        let text = program.printed();
        let mut lines = text.lines();
        let found = lines.find_map(|line| Some(line.strip_prefix(begins)?.trim().to_owned()));
        assert!(found.is_some() || !ended, "{text}{}", program.errors());
        found
    };
    eventually(&format!("it prints {begins:?}"), found).await
}

/// What state a process is in; none when there is no such process.
fn state(process: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether it runs: what nobody has reaped does not.
fn lives(process: &str) -> bool {
    !matches!(state(process), None | Some('Z' | 'X'))
}

/// The watchers of this group.
fn watchers(group: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let of_group = processes.filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|&byte| byte == 0).collect();
        words.get(1) == Some(&&b"__watch"[..]) && words.get(2) == Some(&group.as_bytes())
    });
    let name = |process: std::fs::DirEntry| process.file_name().to_string_lossy().into_owned();
    of_group
        .map(name)
        .filter(|process| lives(process))
        .collect()
}

/// Waits until nobody watches it any more.
async fn nobody_watches(group: &str) {
    let watching = async || watchers(group);
    until("nobody watches it", watching, Vec::is_empty).await;
}
