//! `dlock run` while its lock is held: what is passed on, and how it ends.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::support::process::Process;
use crate::support::program::Program;
use crate::support::redis::Setup;
use crate::support::wait::until;
use crate::{
    PATIENT, code, dlock, lives, nobody_watches, printed, ran, ran_in_time, redis, stderr, stdout,
    with_defaults,
};

fn send(process: &Process, signal: Signal) {
    let id = Pid::from_raw(i32::try_from(process.id()).expect("a number"));
    kill(id, signal).expect("our own process");
}

#[tokio::test]
async fn the_exit_code_is_that_of_the_command() {
    let server = redis().await;
    for (script, expected) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -TERM $$", 143),
        ("kill -KILL $$", 137),
    ] {
        let run = ran(dlock(
            &server.url(),
            &["run", "k", "--", "sh", "-c", script],
        ))
        .await;
        assert_eq!(code(&run), expected, "{script}: {}", stderr(&run));
        assert_eq!(stderr(&run), "", "{script}");
    }
    assert!(server.keys().await.iter().all(|key| !key.contains("{k}")));
}

/// A shell that runs a script goes on after `^C` if the tool only returns a number.
#[tokio::test]
async fn it_is_ended_by_the_signal_that_ended_its_command() {
    let server = redis().await;
    for (script, expected) in [
        ("kill -INT $$", (None, Some(2))),
        ("kill -TERM $$", (None, Some(15))),
        ("kill -HUP $$", (None, Some(1))),
        ("kill -KILL $$", (Some(137), None)),
        ("exit 130", (Some(130), None)),
    ] {
        let run = ran(dlock(
            &server.url(),
            &["run", "k", "--", "sh", "-c", script],
        ))
        .await;
        let ended = (run.status.code(), run.status.signal());
        assert_eq!(ended, expected, "{script}: {}", stderr(&run));
    }
    assert!(server.keys().await.iter().all(|key| !key.contains("{k}")));
}

#[tokio::test]
async fn what_cannot_be_run_is_told() {
    let server = redis().await;
    for (program, expected) in [
        ("/no/such/thing", 127),
        ("no-such-thing", 127),
        ("/etc/passwd", 126),
    ] {
        let run = ran(dlock(
            &server.url(),
            &["run", "--once", "1h", "k", "--", program],
        ))
        .await;
        assert_eq!(code(&run), expected, "{}", stderr(&run));
        assert!(stderr(&run).contains(program), "{}", stderr(&run));
        assert_eq!(stderr(&run).lines().count(), 1, "{}", stderr(&run));
    }
}

#[tokio::test]
async fn streams_arguments_and_environment_reach_it() {
    let server = redis().await;
    let echo = [
        "run",
        "k",
        "--",
        "sh",
        "-c",
        "cat; echo \"$1\" >&2",
        "sh",
        "a b $c",
    ];
    let input = std::fs::File::open("Cargo.toml").expect("a file");
    let mut program = Program::start_with(dlock(&server.url(), &echo), Stdio::from(input));
    let run = program.end().await;
    assert_eq!(code(&run), 0);
    let sent = std::fs::read_to_string("Cargo.toml").expect("a file");
    assert_eq!(stdout(&run), sent);
    assert_eq!(stderr(&run), "a b $c\n");

    let print = ["--", "printenv", "DLOCK_KEY", "DLOCK_TOKEN"];
    let run = ran(dlock(
        &server.url(),
        &[&["run", "b", "a", "b"], &print[..]].concat(),
    ))
    .await;
    let text = stdout(&run);
    let lines: Vec<_> = text.lines().collect();
    let [b, a, first, second] = lines[..] else {
        panic!("{text}");
    };
    assert_eq!((b, a), ("b", "a"));
    let token = |text: &str| text.parse::<u64>().expect("a number");
    assert!(token(first) > 0 && token(second) > 0, "{text}");
}

/// Also one inside of another, which finds what the outer one has set.
#[tokio::test]
async fn tools_run_tools() {
    let server = redis().await;
    let tool = env!("CARGO_BIN_EXE_dlock");
    let inner = [
        "run",
        "outer",
        "--",
        tool,
        "run",
        "inner",
        "--",
        "printenv",
        "DLOCK_KEY",
    ];
    let run = ran(dlock(&server.url(), &inner)).await;
    assert_eq!(
        (code(&run), &*stdout(&run)),
        (0, "inner\n"),
        "{}",
        stderr(&run)
    );
}

#[tokio::test]
async fn one_at_a_time_or_as_many_as_allowed() {
    let server = redis().await;
    let url = server.url();
    let hold = |options: &[&str], key: &str| {
        let rest = [key, "--", "sh", "-c", "echo pid $$; sleep 1000"];
        Program::start(dlock(&url, &[&["run"], options, &rest].concat()))
    };
    let held = [
        hold(&[], "write"),
        hold(&["--read"], "read"),
        hold(&["--permits", "2"], "permits"),
    ];
    for program in &held {
        printed(program, "pid ").await;
    }
    for (options, key, expected) in [
        (&["-n"][..], "write", 75),
        (&["-w", "1s"], "write", 75),
        (&["-n", "-E", "9"], "write", 9),
        (&["-n", "--skip-ok"], "write", 0),
        (&["-n"], "read", 75),
        (&["-n", "--read"], "read", 0),
        (&["-n", "--permits", "1"], "permits", 75),
        (&["-n", "--permits", "2"], "permits", 0),
        (&["-n"], "free", 0),
    ] {
        let arguments = [&["run"], options, &[key, "--", "echo", "ran"]].concat();
        let run = match options.contains(&"-w") {
            true => ran_in_time(|| dlock(&url, &arguments)).await,
            false => ran(dlock(&url, &arguments)).await,
        };
        assert_eq!(code(&run), expected, "{arguments:?}: {}", stderr(&run));
        let may = expected == 0 && !options.contains(&"--skip-ok");
        assert_eq!(stdout(&run).contains("ran"), may, "{arguments:?}");
        let lines = usize::from(expected != 0);
        assert_eq!(
            stderr(&run).lines().count(),
            lines,
            "{arguments:?}: {}",
            stderr(&run)
        );
    }
    for mut program in held {
        program.process.terminate();
        assert_eq!(code(&program.end().await), 143);
    }
}

#[tokio::test]
async fn what_was_done_is_not_done_again_unless_it_failed() {
    let server = redis().await;
    let url = server.url();
    let once = |script| {
        dlock(
            &url,
            &["run", "--once", "1h", "k", "--", "sh", "-c", script],
        )
    };
    assert_eq!(code(&ran(once("echo ran; exit 3")).await), 3);
    assert_eq!(stdout(&ran(once("echo ran")).await), "ran\n");
    let again = ran(once("echo ran")).await;
    assert_eq!((code(&again), &*stdout(&again)), (0, ""));
    assert!(
        stderr(&again).contains("done already"),
        "{}",
        stderr(&again)
    );
    // In a list it looks like one that is held.
    let broken = ran(dlock(&url, &["break", "k", "--yes"])).await;
    assert_eq!(code(&broken), 0);
    assert!(
        stderr(&broken).contains("dlock forget"),
        "{}",
        stderr(&broken)
    );
    for told in ["forgotten", "nothing"] {
        let forget = ran(dlock(&url, &["forget", "k"])).await;
        assert_eq!(code(&forget), 0);
        assert!(stderr(&forget).contains(told), "{}", stderr(&forget));
    }
    assert_eq!(stdout(&ran(once("echo ran")).await), "ran\n");
}

#[tokio::test]
async fn min_hold_keeps_it() {
    let server = redis().await;
    let url = server.url();
    let kept = ran(dlock(&url, &["run", "--min-hold", "1h", "k", "--", "true"])).await;
    assert_eq!(code(&kept), 0);
    let next = ran(dlock(&url, &["run", "-n", "k", "--", "true"])).await;
    assert_eq!(code(&next), 75);
}

/// All but those that nobody can catch, that tell of a program's own faults, and those of
/// real time. A shell may not know all of them by name.
const PASSED_ON: [Signal; 20] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTERM,
    Signal::SIGSTKFLT,
    Signal::SIGCONT,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGURG,
    Signal::SIGXCPU,
    Signal::SIGXFSZ,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGWINCH,
    Signal::SIGIO,
    Signal::SIGPWR,
];

#[tokio::test]
async fn every_signal_reaches_the_whole_group() {
    let server = redis().await;
    let numbers: Vec<_> = PASSED_ON
        .iter()
        .map(|signal| (*signal as i32).to_string())
        .collect();
    // A shell that waits has its traps run at once; who else is in the group ignores all.
    let script = format!(
        "all='{}'
        for s in $all; do trap '' $s; done; sleep 1000 &
        for s in $all; do trap \"echo $1 got $s.\" $s; done
        echo $1 pid $$
        [ $1 = child ] || sh -c \"$0\" \"$0\" child &
        while :; do wait; done",
        numbers.join(" ")
    );
    let arguments = ["run", "k", "--", "sh", "-c", &script, &script, "parent"];
    let mut program = Program::start(dlock(&server.url(), &arguments));
    let parent = printed(&program, "parent pid ").await;
    printed(&program, "child pid ").await;
    for (signal, number) in PASSED_ON.iter().zip(&numbers) {
        send(&program.process, *signal);
        printed(&program, &format!("parent got {number}.")).await;
        // A shell has what it puts into the background ignore these two.
        if !matches!(signal, Signal::SIGINT | Signal::SIGQUIT) {
            printed(&program, &format!("child got {number}.")).await;
        }
    }
    let group = Pid::from_raw(parent.parse().expect("a number"));
    killpg(group, Signal::SIGKILL).expect("our own group");
    assert_eq!(code(&program.end().await), 137);
}

#[tokio::test]
async fn a_command_stops_with_the_tool_and_ends_with_it() {
    let server = redis().await;
    // A shell that starts programs may be between `vfork` and `exec`: then what it has forked is
    // stopped, and the shell waits for that.
    let script = "echo $1 pid $$
        [ $1 = child ] || sh -c \"$0\" \"$0\" child &
        exec sleep 600";
    let arguments = ["run", "k", "--", "sh", "-c", script, script, "parent"];
    let program = Program::start(dlock(&server.url(), &arguments));
    let parent = printed(&program, "parent pid ").await;
    let child = printed(&program, "child pid ").await;
    send(&program.process, Signal::SIGTSTP);
    until(
        "it is stopped",
        async || crate::state(&child),
        |state| *state == Some('T'),
    )
    .await;
    send(&program.process, Signal::SIGCONT);
    until(
        "it goes on",
        async || crate::state(&child),
        |state| *state != Some('T'),
    )
    .await;
    drop(program);
    // The tool was killed: nothing renews the lock.
    for process in [parent, child] {
        until("it is killed", async || lives(&process), |lives| !lives).await;
        nobody_watches(&process).await;
    }
}

/// As `nohup` makes it.
#[tokio::test]
async fn what_was_ignored_stays_ignored() {
    let server = redis().await;
    let tool = env!("CARGO_BIN_EXE_dlock");
    let mut nohup = crate::support::process::command("sh");
    nohup.env("DLOCK_URL", server.url()).envs(PATIENT).args([
        "-c",
        "trap '' HUP; exec \"$0\" run k -- sh -c 'grep SigIgn /proc/self/status; read line; exit 4'",
        tool,
    ]);
    let mut program = Program::start_with(nohup, Stdio::piped());
    let ignored = printed(&program, "SigIgn:").await;
    let ignored = u64::from_str_radix(&ignored, 16).expect("a mask");
    assert_eq!(ignored & 1, 1, "{ignored:x}");
    send(&program.process, Signal::SIGHUP);
    drop(program.process.input());
    assert_eq!(code(&program.end().await), 4);
}

#[tokio::test]
async fn who_waits_leaves_the_queue() {
    let server = redis().await;
    let url = server.url();
    let hold = ["run", "k", "--", "sh", "-c", "echo pid $$; sleep 1000"];
    let mut holder = Program::start(dlock(&url, &hold));
    printed(&holder, "pid ").await;
    for command in [&["run", "k", "--", "true"][..], &["wait", "k"]] {
        let mut waiter = Program::start(dlock(&url, command));
        let queue = async || server.command::<usize>(&["LLEN", "dlock:{k}:queue"]).await;
        until("it waits", queue, |waiters| *waiters == 1).await;
        waiter.process.terminate();
        assert_eq!(code(&waiter.end().await), 143);
        until("it has left", queue, |waiters| *waiters == 0).await;
    }
    holder.process.terminate();
    assert_eq!(code(&holder.end().await), 143);
}

#[tokio::test]
async fn what_is_left_behind_does_not_run_on() {
    let server = redis().await;
    for trap in ["", "trap '' TERM;"] {
        let script =
            format!("sh -c '{trap} echo pid $$; while :; do sleep 0.05; done' & sleep 0.3; exit 3");
        let arguments = ["run", "-k", "300ms", "k", "--", "sh", "-c", &script];
        let run = ran(dlock(&server.url(), &arguments)).await;
        assert_eq!(code(&run), 3);
        assert!(stderr(&run).contains("left running"), "{}", stderr(&run));
        let child = stdout(&run).trim().replace("pid ", "");
        assert!(!lives(&child), "{child}");
    }
}

#[tokio::test]
async fn mistakes_have_their_codes() {
    let server = redis().await;
    let url = server.url();
    for (arguments, expected, says) in [
        (&["run", "k"][..], 64, "COMMAND"),
        (&["run", "k", "true"], 64, "behind `--`"),
        (&["run", "--", "true"], 64, "KEY"),
        (&["run", "--bogus", "k", "--", "true"], 64, "--bogus"),
        (&["ls", "--bogus"], 64, "see `dlock ls --help`"),
        (&["--bogus"], 64, "see `dlock --help`"),
        (&["run", "-w", "soon", "k", "--", "true"], 64, "soon"),
        (&["run", "--permits", "0", "k", "--", "true"], 64, "0"),
        (&["run", "-n", "-w", "1s", "k", "--", "true"], 64, "--try"),
        (
            &["run", "--read", "--once", "1h", "k", "--", "true"],
            64,
            "--once",
        ),
        (&["run", "", "--", "true"], 64, "empty"),
        (&["bogus"], 64, "bogus"),
        (&[], 64, "a command is missing"),
        (
            &["run", "--ttl", "1ms", "k", "-k", "0", "--", "true"],
            78,
            "ttl",
        ),
        (
            &["run", "--ttl", "12s", "-k", "5s", "k", "--", "true"],
            78,
            "--kill-after",
        ),
        // No time is left to end in.
        (
            &["run", "--ttl", "8s", "k", "--", "true"],
            78,
            "the ttl is too short",
        ),
        (
            &["run", "--ttl", "3s", "k", "--", "true"],
            78,
            "raise --ttl, or lower DLOCK_REQUEST_TIMEOUT",
        ),
        (&["run", "-k", "16s", "k", "--", "true"], 78, "--kill-after"),
        (&["run", "--once", "1h", "a", "b", "--", "true"], 78, "once"),
        (
            &["--url", "memory:", "run", "k", "--", "true"],
            78,
            "memory:",
        ),
        (&["--url", "127.0.0.1:1", "ls"], 78, "redis://"),
        (
            &["run", "--url", "redis://127.0.0.1:1", "k", "--", "true"],
            69,
            "refused",
        ),
        (&["ls", "--url", "redis://127.0.0.1:1"], 69, "refused"),
        (&["--help"], 0, ""),
        (&["--version"], 0, ""),
        (&["run", "--help"], 0, ""),
    ] {
        let run = ran(with_defaults(&url, arguments)).await;
        assert_eq!(code(&run), expected, "{arguments:?}: {}", stderr(&run));
        let told = stderr(&run);
        assert!(told.contains(says), "{arguments:?}: {told}");
        let lines = usize::from(expected != 0);
        assert_eq!(told.lines().count(), lines, "{arguments:?}: {told}");
        assert_ne!(stdout(&run).is_empty(), expected == 0, "{arguments:?}");
    }
    let empty = dlock("", &["ls"]);
    let mut unset = dlock("", &["ls"]);
    unset.env_remove("DLOCK_URL");
    for without in [empty, unset] {
        let output = ran(without).await;
        let told = stderr(&output);
        assert_eq!(code(&output), 78, "{told}");
        assert!(
            told.contains("DLOCK_URL") && told.contains("--url"),
            "{told}"
        );
        // Which would be refused.
        assert!(!told.contains("memory:"), "{told}");
    }
}

/// By default no longer than the lease allows.
#[tokio::test]
async fn a_short_lease_leaves_less_time_to_end() {
    let server = redis().await;
    let url = server.url();
    let short = ["run", "--ttl", "12s", "k", "--", "true"];
    let quiet = ran(with_defaults(&url, &short)).await;
    assert_eq!((code(&quiet), &*stderr(&quiet)), (0, ""));
    let told = ran(with_defaults(&url, &[&["-v"], &short[..]].concat())).await;
    assert_eq!(code(&told), 0, "{}", stderr(&told));
    assert!(
        stderr(&told).contains("a lease of 12s leaves the command 3s"),
        "{}",
        stderr(&told)
    );
}

#[tokio::test]
async fn a_holder_is_called_as_its_command() {
    let server = redis().await;
    let url = server.url();
    let command = ["run", "k", "--", "/bin/sh", "-c", "echo pid $$; sleep 1000"];
    for (label, shown) in [(None, "sh"), (Some(""), "sh"), (Some("reports"), "reports")] {
        let mut tool = dlock(&url, &command);
        if let Some(label) = label {
            tool.env("DLOCK_LABEL", label);
        }
        let mut tool = Program::start(tool);
        printed(&tool, "pid ").await;
        let list = stdout(&ran(dlock(&url, &["ls"])).await);
        let [head, row] = list.lines().collect::<Vec<_>>()[..] else {
            panic!("one lock: {list}");
        };
        let head: Vec<_> = head.split_whitespace().collect();
        let row: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            head,
            [
                "KEY", "MODE", "HOLDER", "HOST", "PID", "TOKEN", "AGE", "LEFT", "WAITERS"
            ]
        );
        assert_eq!(row[..3], ["k", "write", shown], "{list}");
        tool.process.terminate();
        assert_eq!(code(&tool.end().await), 143);
    }
}

#[tokio::test]
async fn who_may_not_is_told_and_secrets_are_not() {
    let server = Setup::default().start().await;
    let _: String = server
        .command(&[
            "ACL", "SETUSER", "reader", "on", ">hunter2", "~other:*", "+@all",
        ])
        .await;
    let port = server.port();
    for (login, arguments, expected) in [
        ("reader:hunter2", &["run", "k", "--", "true"][..], 77),
        ("reader:hunter2", &["-v", "run", "k", "--", "true"], 77),
        ("reader:hunter23", &["-v", "ls"], 78),
        (
            "reader:hunter2",
            &["run", "redis://me:hunter2@host", "--bogus"],
            64,
        ),
        ("reader:hunter2", &["--urll=redis://me:hunter2@host"], 64),
    ] {
        let url = format!("redis://{login}@127.0.0.1:{port}");
        let run = ran(dlock(&url, arguments)).await;
        let told = stderr(&run);
        assert_eq!(code(&run), expected, "{arguments:?}: {told}");
        assert!(!told.contains("hunter2"), "{arguments:?}: {told}");
    }
}

#[tokio::test]
async fn help_has_examples_and_v_says_more() {
    let server = redis().await;
    let url = server.url();
    for command in [
        "run",
        "ls",
        "show",
        "top",
        "wait",
        "break",
        "forget",
        "doctor",
        "completions",
    ] {
        let help = stdout(&ran(dlock(&url, &[command, "--help"])).await);
        assert!(help.contains("Examples:"), "{help}");
    }
    let quiet = ran(dlock(&url, &["run", "k", "--", "true"])).await;
    assert_eq!(stderr(&quiet), "");
    let more = ran(dlock(&url, &["run", "-v", "k", "--", "true"])).await;
    assert!(stderr(&more).contains("granted"), "{}", stderr(&more));
    let refused = ran(with_defaults("redis://127.0.0.1:1", &["ls", "-v"])).await;
    let said = stderr(&refused);
    let told = said.lines().filter(|line| line.starts_with("dlock: "));
    let told: String = told.collect();
    assert_eq!(told.matches("os error").count(), 1, "once: {said}");
}
