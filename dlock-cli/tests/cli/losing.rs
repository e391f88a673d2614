//! `dlock run` when its lock is lost, and when the tool itself is killed or stopped.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use crate::support::calm::unless_it_stands_still;
use crate::support::dir::TempDir;
use crate::support::process::command;
use crate::support::program::Program;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::wait::{eventually, until};
use crate::{
    code, copied, dlock, lives, nobody_watches, printed, ran, redis, stderr, stdout, watchers,
    with_defaults,
};

/// A command that ends for nobody, and neither does its child.
const STUBBORN: &str = "trap '' TERM INT HUP; echo pid $$
    sh -c 'trap \"\" TERM INT HUP; echo child $$; while :; do sleep 0.05; done' &
    while :; do sleep 0.05; done";

/// On a machine that stands still for so long, a command may be killed before it is told to end,
/// and later than its lock is lost.
pub(crate) const STANDS_STILL: Duration = Duration::from_millis(100);

/// A lease as short as a busy machine bears, and a tool that asks quickly.
pub(crate) fn short(url: &str, options: &[&str], script: &str) -> Program {
    with_lease(url, ["6s", "1s"], options, script)
}

/// The same with more time to end well, which a busy machine may take.
pub(crate) fn ends_well(url: &str, options: &[&str], script: &str) -> Program {
    with_lease(url, ["8s", "3s"], options, script)
}

fn with_lease(url: &str, [ttl, kill_after]: [&str; 2], options: &[&str], script: &str) -> Program {
    let before = [&["run", "--ttl", ttl, "-k", kill_after][..], options].concat();
    let arguments = [&before[..], &["k", "--", "sh", "-c", script]].concat();
    let mut tool = dlock(url, &arguments);
    tool.env("DLOCK_REQUEST_TIMEOUT", "2s");
    Program::start(tool)
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Outage,
    Killed,
    Stopped,
}

impl Fault {
    pub(crate) fn happens(self, proxy: &Proxy, tool: &mut Program) {
        match self {
            Self::Outage => proxy.stall(true),
            Self::Killed => tool.process.kill(),
            Self::Stopped => tool.process.pause(),
        }
    }

    /// What is left of the tool tells that the lock was lost.
    async fn is_told(self, mut tool: Program) {
        match self {
            Self::Outage => {}
            Self::Killed => return,
            Self::Stopped => tool.process.resume(),
        }
        let ended = tool.end().await;
        let told = stderr(&ended);
        assert_eq!(code(&ended), 74, "{self:?}: {told}");
        assert!(told.contains("dlock: the l"), "{self:?}: {told}");
    }
}

/// Whoever has the lock next finds nobody of the command before alive.
#[tokio::test]
async fn the_group_is_dead_when_the_next_holder_comes() {
    for fault in [Fault::Outage, Fault::Killed, Fault::Stopped] {
        unless_it_stands_still(STANDS_STILL, async || group_is_dead(fault).await).await;
    }
}

async fn group_is_dead(fault: Fault) {
    let server = redis().await;
    let proxy = Proxy::to(server.port());
    let mut tool = short(&server.url_through(proxy.port()), &[], STUBBORN);
    let command = printed(&tool, "pid ").await;
    let child = printed(&tool, "child ").await;
    assert_eq!(watchers(&command).len(), 1);
    fault.happens(&proxy, &mut tool);
    assert!(
        lives(&command) && lives(&child),
        "{fault:?}: there is time left"
    );
    let look = format!(
        "for p in {command} {child}; do cut -d' ' -f3 /proc/$p/stat 2>/dev/null || echo none; done"
    );
    let next = ran(dlock(&server.url(), &["run", "k", "--", "sh", "-c", &look])).await;
    // A line for each: a process that nobody has reaped yet, or none.
    let states = stdout(&next);
    let states: Vec<_> = states.lines().collect();
    assert_eq!(states.len(), 2, "{fault:?}: {}", stderr(&next));
    assert!(
        states
            .iter()
            .all(|state| matches!(*state, "Z" | "X" | "none")),
        "{fault:?}: {states:?}"
    );
    nobody_watches(&command).await;
    fault.is_told(tool).await;
}

/// So early that there is time to end well.
#[tokio::test]
async fn a_command_is_told_before_the_lock_is_lost() {
    for fault in [Fault::Outage, Fault::Killed, Fault::Stopped] {
        unless_it_stands_still(STANDS_STILL, async || command_is_told(fault).await).await;
    }
}

async fn command_is_told(fault: Fault) {
    let server = redis().await;
    let proxy = Proxy::to(server.port());
    let told = crate::support::dir::TempDir::default();
    let told = told.path().join("told");
    let script = format!(
        "trap 'echo told > {}; exit 0' TERM; echo pid $$; while :; do sleep 0.05; done",
        told.display()
    );
    let mut tool = ends_well(&server.url_through(proxy.port()), &[], &script);
    let command = printed(&tool, "pid ").await;
    std::fs::create_dir_all(told.parent().expect("a folder")).expect("a folder");
    fault.happens(&proxy, &mut tool);
    let has_ended = async || lives(&command);
    until("it has ended", has_ended, |lives| !lives).await;
    assert!(told.exists(), "{fault:?}");
    nobody_watches(&command).await;
    fault.is_told(tool).await;
}

pub(crate) async fn take_away(server: &RedisServer) {
    let gone: usize = server.command(&["DEL", "dlock:{k}"]).await;
    assert_eq!(gone, 1);
}

#[tokio::test]
async fn what_is_gone_already_is_killed_at_once() {
    unless_it_stands_still(STANDS_STILL, is_killed_at_once).await;
}

async fn is_killed_at_once() {
    let server = redis().await;
    let script = "trap 'echo told' TERM; echo pid $$; while :; do sleep 0.05; done";
    let mut tool = short(&server.url(), &[], script);
    printed(&tool, "pid ").await;
    take_away(&server).await;
    let ended = tool.end().await;
    assert_eq!(code(&ended), 74, "{}", stderr(&ended));
    assert!(!stdout(&ended).contains("told"), "{}", stdout(&ended));
    assert!(stderr(&ended).contains("lost"), "{}", stderr(&ended));
}

#[tokio::test]
async fn max_hold_ends_it() {
    unless_it_stands_still(STANDS_STILL, ends_at_max_hold).await;
}

async fn ends_at_max_hold() {
    let server = redis().await;
    let mut tool = short(&server.url(), &["--max-hold", "1s"], STUBBORN);
    let command = printed(&tool, "pid ").await;
    let ended = tool.end().await;
    assert_eq!(code(&ended), 74, "{}", stderr(&ended));
    assert!(stderr(&ended).contains("--max-hold"), "{}", stderr(&ended));
    assert!(!lives(&command));
    nobody_watches(&command).await;
}

/// Whoever ends because it is told to has not done its work, whatever it returns.
#[tokio::test]
async fn what_was_told_to_end_is_not_remembered_as_done() {
    unless_it_stands_still(STANDS_STILL, is_not_remembered).await;
}

async fn is_not_remembered() {
    let server = redis().await;
    let ends = "trap 'exit 0' TERM; echo pid $$; while :; do sleep 0.05; done";
    let once = ["--once", "1h", "--max-hold", "1s"];
    let mut tool = ends_well(&server.url(), &once, ends);
    printed(&tool, "pid ").await;
    let ended = tool.end().await;
    assert_eq!(code(&ended), 74, "{}", stderr(&ended));
    assert!(
        stderr(&ended).contains("not remembered as done"),
        "{}",
        stderr(&ended)
    );
    let again = ran(dlock(
        &server.url(),
        &["run", "--once", "1h", "k", "--", "echo", "ran"],
    ))
    .await;
    assert_eq!(stdout(&again), "ran\n", "{}", stderr(&again));
}

/// The store is away as the command succeeds, for longer than the tool waits to give a lock back.
#[tokio::test]
async fn what_succeeded_in_an_outage_is_remembered_behind_it() {
    unless_it_stands_still(STANDS_STILL, is_remembered_behind_an_outage).await;
}

async fn is_remembered_behind_an_outage() {
    let server = redis().await;
    let proxy = Proxy::to(server.port());
    let run = |url: &str, script: &str| {
        let arguments = ["run", "--once", "1h", "k", "--", "sh", "-c", script];
        let mut tool = dlock(url, &arguments);
        tool.env("DLOCK_REQUEST_TIMEOUT", "1s");
        tool
    };
    let ends = TempDir::default();
    let end = ends.path().join("end");
    let waits = format!(
        "echo pid $$; while [ ! -e {} ]; do sleep 0.05; done",
        end.display()
    );
    let mut tool = Program::start(run(&server.url_through(proxy.port()), &waits));
    printed(&tool, "pid ").await;
    proxy.stall(true);
    std::fs::write(&end, "").expect("a file");
    eventually("it is told", async || {
        tool.errors().contains("not remembered yet").then_some(())
    })
    .await;
    // How long the outage lasts: longer than a request timeout and two seconds, behind which the
    // tool once left. There is nothing to see meanwhile but that it is there.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    proxy.stall(false);
    let ended = tool.end().await;
    assert_eq!(code(&ended), 0, "{}", stderr(&ended));
    assert!(
        stderr(&ended).contains("is remembered now"),
        "{}",
        stderr(&ended)
    );
    let again = ran(run(&server.url(), "echo ran")).await;
    assert_eq!(stdout(&again), "", "{}", stderr(&again));
}

/// A tool that was stopped goes on before its lease ends, and renews it: but its command was told
/// to end by then.
#[tokio::test]
async fn who_was_told_to_end_has_not_succeeded_though_the_lease_is_renewed() {
    unless_it_stands_still(STANDS_STILL, is_told_and_renewed).await;
}

async fn is_told_and_renewed() {
    let server = redis().await;
    let ends = TempDir::default();
    let end = ends.path().join("end");
    let script = format!(
        "trap 'echo told to end' TERM; echo pid $$
        while [ ! -e {} ]; do sleep 0.05; done",
        end.display()
    );
    let mut tool = ends_well(&server.url(), &["--once", "1h"], &script);
    printed(&tool, "pid ").await;
    tool.process.pause();
    printed(&tool, "told ").await;
    tool.process.resume();
    let left = async || server.command::<i64>(&["PTTL", "dlock:{k}"]).await;
    until("it is renewed", left, |left| *left > 5_000).await;
    std::fs::write(&end, "").expect("a file");
    let ended = tool.end().await;
    assert_eq!(code(&ended), 74, "{}", stderr(&ended));
    assert!(
        stderr(&ended).contains("not renewed in time; the command was told to end"),
        "{}",
        stderr(&ended)
    );
    assert_eq!(stdout(&ended).matches("told to end").count(), 1);
    let again = ran(dlock(
        &server.url(),
        &["run", "--once", "1h", "k", "--", "echo", "ran"],
    ))
    .await;
    assert_eq!(stdout(&again), "ran\n", "{}", stderr(&again));
}

/// What ends before the deadline leaves nobody behind, also if the tool was killed.
#[tokio::test]
async fn a_watcher_ends_with_what_it_watches() {
    let server = redis().await;
    let arguments = ["run", "k", "--", "sh", "-c", "echo pid $$; exec sleep 1"];
    let mut tool = Program::start(with_defaults(&server.url(), &arguments));
    let command = printed(&tool, "pid ").await;
    tool.process.kill();
    nobody_watches(&command).await;
    assert!(!lives(&command), "the ttl of 30 s has not passed");
}

/// Somebody ends it, as who ends all processes of a user.
#[tokio::test]
async fn a_watcher_that_was_killed_has_a_successor() {
    unless_it_stands_still(STANDS_STILL, has_a_successor).await;
}

async fn has_a_successor() {
    let server = redis().await;
    let mut tool = short(&server.url(), &[], STUBBORN);
    let command = printed(&tool, "pid ").await;
    let [first] = &watchers(&command)[..] else {
        panic!("one watches");
    };
    let killed = std::process::Command::new("kill")
        .args(["-TERM", first])
        .status();
    assert!(killed.is_ok_and(|status| status.success()));
    let killed = std::process::Command::new("kill")
        .args(["-KILL", first])
        .status();
    assert!(killed.is_ok_and(|status| status.success()));
    let watch = async || watchers(&command);
    until("another watches", watch, |now| {
        now.len() == 1 && now[0] != *first
    })
    .await;
    tool.process.kill();
    until("it is killed", async || lives(&command), |lives| !lives).await;
    nobody_watches(&command).await;
}

/// The store comes back in time: nothing has happened.
#[tokio::test]
async fn a_short_outage_is_nothing() {
    let server = redis().await;
    let proxy = Proxy::to(server.port());
    let arguments = [
        "run",
        "--ttl",
        "20s",
        "-k",
        "1s",
        "k",
        "--",
        "sh",
        "-c",
        "echo pid $$; read line; exit 6",
    ];
    let mut command = dlock(&server.url_through(proxy.port()), &arguments);
    // The first connection may take a busy machine long.
    command.env("DLOCK_REQUEST_TIMEOUT", "10s");
    let mut tool = Program::start_with(command, std::process::Stdio::piped());
    printed(&tool, "pid ").await;
    proxy.cut();
    let left = async || server.command::<i64>(&["PTTL", "dlock:{k}"]).await;
    until("less is left", left, |left| *left < 17_000).await;
    until("it was renewed", left, |left| *left > 17_000).await;
    drop(tool.process.input());
    let ended = tool.end().await;
    assert_eq!(code(&ended), 6, "{}", stderr(&ended));
}

/// What runs as another user, as through `sudo`, does not end, and nobody says that it has.
/// Only root can make a program that becomes somebody else.
#[tokio::test]
async fn what_may_not_be_signalled_runs_on_and_is_told() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not root: nothing to look at");
        return;
    }
    unless_it_stands_still(STANDS_STILL, runs_on_and_is_told).await;
}

async fn runs_on_and_is_told() {
    let server = redis().await;
    let dir = TempDir::default();
    let put = |file: &str, name: &str, mode: u32| {
        let path = dir.path().join(name);
        copied(file, &path);
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("rights");
        path
    };
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("rights");
    let tool = put(env!("CARGO_BIN_EXE_dlock"), "dlock", 0o755);
    let become_root = put("/usr/bin/setpriv", "sudo", 0o4755);
    let mut user = command("setpriv");
    user.args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(tool)
        .args(["run", "--ttl", "6s", "-k", "1s", "k", "--"])
        .arg(become_root)
        .args(["--reuid=0", "--clear-groups", "sh", "-c"])
        .arg("echo pid $$; while :; do sleep 0.05; done")
        .env("DLOCK_URL", server.url())
        .env("DLOCK_REQUEST_TIMEOUT", "2s");
    let mut tool = Program::start(user);
    let command = printed(&tool, "pid ").await;
    let told = async |what: &str| {
        let told = async || tool.errors().contains(what).then_some(());
        eventually("it is told", told).await;
    };
    told("sudo` runs as another user").await;
    take_away(&server).await;
    told("the command runs on without it").await;
    assert!(lives(&command));
    let killed = std::process::Command::new("kill")
        .args(["-KILL", &command])
        .status();
    assert!(killed.is_ok_and(|status| status.success()));
    let ended = tool.end().await;
    assert_eq!(code(&ended), 74, "{}", stderr(&ended));
    assert!(!stderr(&ended).contains("killed"), "{}", stderr(&ended));
}
