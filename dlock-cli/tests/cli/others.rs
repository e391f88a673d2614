//! The commands that look, and what is common to all.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Stdio};

use tokio::net::TcpListener;

use crate::databases::postgres::PostgreSql;
use crate::databases::server::Server;
use crate::screen::Screen;
use crate::support::process::Process;
use crate::support::program::Program;
use crate::support::wait::{HANG, until, within};
use crate::{code, dlock, printed, ran, ran_in_time, redis, stderr, stdout};

fn held(url: &str, key: &str, options: &[&str]) -> Program {
    let rest = [key, "--", "sh", "-c", "echo pid $$; sleep 1000"];
    Program::start(dlock(url, &[&["run"], options, &rest].concat()))
}

#[tokio::test]
async fn what_is_held_is_listed() {
    let server = redis().await;
    let url = server.url();
    let empty = ran(dlock(&url, &["ls"])).await;
    assert_eq!((code(&empty), stdout(&empty).lines().count()), (0, 1));
    assert_eq!(
        stdout(&ran(dlock(&url, &["ls", "-o", "json"])).await),
        "[]\n"
    );

    let programs = [
        held(&url, "stock:1", &[]),
        held(&url, "stock:2", &["--read", "--ttl", "5m"]),
        held(&url, "stock:2", &["--read", "--ttl", "5m"]),
        held(&url, "other", &["--permits", "3", "--ttl", "2h"]),
    ];
    for program in &programs {
        printed(program, "pid ").await;
    }
    let done = ran(dlock(
        &url,
        &["run", "--once", "9h", "report", "--", "true"],
    ))
    .await;
    assert_eq!(code(&done), 0);

    let keys = |text: &str| -> Vec<String> {
        let words = text
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next());
        words.map(ToOwned::to_owned).collect()
    };
    let list = |arguments: &'static [&'static str]| {
        let command = dlock(&url, arguments);
        async move { stdout(&ran(command).await) }
    };
    let all = list(&["ls"]).await;
    assert_eq!(
        keys(&all),
        ["other", "report", "stock:1", "stock:2"],
        "{all}"
    );
    assert!(
        all.contains("1 of 3") && all.contains("done") && all.contains("+1"),
        "{all}"
    );
    let stock = list(&["ls", "stock:"]).await;
    assert_eq!(keys(&stock), ["stock:1", "stock:2"], "{stock}");
    let wide = list(&["ls", "stock:", "-o", "wide"]).await;
    assert_eq!(keys(&wide), ["stock:1", "stock:2", "stock:2"], "{wide}");
    let sorted = list(&["ls", "--sort", "left"]).await;
    assert_eq!(
        keys(&sorted),
        ["stock:1", "stock:2", "other", "report"],
        "{sorted}"
    );
    let json = list(&["ls", "stock:2", "-o", "json"]).await;
    for part in [
        "\"key\": \"stock:2\"",
        "\"mode\": \"read\"",
        "\"waiters\": 0",
        "\"left_ms\": 2",
    ] {
        assert!(json.contains(part), "{json}");
    }

    let one = list(&["show", "stock:2"]).await;
    let (holders, places) = one.split_once("\nIn the store:\n").expect("both");
    assert_eq!(keys(holders), ["stock:2", "stock:2"], "{one}");
    assert!(places.contains("  dlock:{stock:2}:readers\n"), "{one}");
    let nobody = ran(dlock(&url, &["show", "free"])).await;
    assert_eq!((code(&nobody), &*stdout(&nobody)), (0, ""));
    assert!(stderr(&nobody).contains("nobody"), "{}", stderr(&nobody));
    for mut program in programs {
        program.process.terminate();
        assert_eq!(code(&program.end().await), 143);
    }
}

#[tokio::test]
async fn a_namespace_is_that_of_the_services() {
    let server = redis().await;
    let url = server.url();
    let mut program = dlock(
        &url,
        &["run", "k", "--", "sh", "-c", "echo pid $$; sleep 1000"],
    );
    program.env("DLOCK_NAMESPACE", "shop");
    let program = Program::start(program);
    printed(&program, "pid ").await;
    let keys = server.keys().await;
    assert!(keys.iter().any(|key| key == "dlock:{shop:k}"), "{keys:?}");
    assert_eq!(
        code(&ran(dlock(&url, &["run", "-n", "k", "--", "true"])).await),
        0
    );
    let mut same = dlock(
        "redis://nowhere:1",
        &["--url", &url, "run", "-n", "k", "--", "true"],
    );
    same.env("DLOCK_NAMESPACE", "shop");
    assert_eq!(code(&ran(same).await), 75);
}

#[tokio::test]
async fn who_waits_is_told_when_it_is_free() {
    let server = redis().await;
    let url = server.url();
    assert_eq!(code(&ran(dlock(&url, &["wait", "k"])).await), 0);
    let mut holder = held(&url, "k", &[]);
    printed(&holder, "pid ").await;
    let late = ran_in_time(|| dlock(&url, &["wait", "-w", "1s", "k"])).await;
    assert_eq!(code(&late), 75, "{}", stderr(&late));
    let mut waiter = Program::start(dlock(&url, &["wait", "k"]));
    let pid = waiter.process.id().to_string();
    let show = async || stdout(&ran(dlock(&url, &["show", "k"])).await);
    until("the queue is shown", show, |shown| {
        let [_, holder, _, _, place, ..] = shown.lines().collect::<Vec<_>>()[..] else {
            return false;
        };
        holder.contains(" sh ") && place.starts_with("1 ") && place.contains(&pid)
    })
    .await;
    let json = stdout(&ran(dlock(&url, &["show", "k", "-o", "json"])).await);
    assert!(json.contains(&format!("\"pid\": {pid}")), "{json}");
    holder.process.terminate();
    assert_eq!(code(&waiter.end().await), 0);
    assert_eq!(code(&holder.end().await), 143);
    // What it took, it has given back.
    assert_eq!(
        code(&ran(dlock(&url, &["run", "-n", "k", "--", "true"])).await),
        0
    );
}

/// The tool, with a store that takes connections and says nothing.
async fn with_silent_store(arguments: &[&str]) -> (TcpListener, Command) {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    let mut tool = dlock(&format!("redis://{address}"), arguments);
    tool.env("DLOCK_REQUEST_TIMEOUT", "1m");
    tool.env("DLOCK_TTL", "10m");
    (silent, tool)
}

/// All of `-w` is over before there is a connection.
#[tokio::test]
async fn a_silent_store_takes_no_longer_than_is_waited() {
    for arguments in [
        &["run", "-w", "1s", "k", "--", "true"][..],
        &["wait", "-w", "1s", "k"],
    ] {
        let (_silent, tool) = with_silent_store(arguments).await;
        let ended = ran(tool).await;
        let told = stderr(&ended);
        assert_eq!(code(&ended), 69, "{told}");
        assert!(told.contains("within 1s"), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

/// Who has no connection yet hears what it is sent.
#[tokio::test]
async fn a_signal_ends_who_connects() {
    for arguments in [&["run", "k", "--", "true"][..], &["wait", "k"]] {
        let (silent, tool) = with_silent_store(arguments).await;
        let mut tool = Program::start(tool);
        let connected = within(HANG, silent.accept()).await;
        let _connection = connected.expect("a connection");
        tool.process.terminate();
        let ended = tool.end().await;
        assert_eq!(code(&ended), 143, "{arguments:?}: {}", stderr(&ended));
    }
}

#[tokio::test]
async fn shells_complete() {
    for shell in ["bash", "zsh", "fish"] {
        let script = ran(dlock("", &["completions", shell])).await;
        assert_eq!(code(&script), 0, "{}", stderr(&script));
        assert!(stdout(&script).contains("forget"), "{shell}");
        assert!(!stdout(&script).contains("__watch"), "{shell}");
    }
}

/// Nobody reads what is printed: neither a panic nor a word.
#[tokio::test]
async fn a_reader_that_left_is_no_panic() {
    let server = redis().await;
    let url = server.url();
    let holder = held(&url, "k", &[]);
    printed(&holder, "pid ").await;
    for arguments in [
        &["ls"][..],
        &["ls", "-o", "json"],
        &["show", "k"],
        &["show", "k", "-o", "json"],
        &["doctor"],
        &["doctor", "-o", "json"],
        &["completions", "bash"],
        &["--help"],
        &["run", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut tool = dlock(&url, arguments);
        tool.stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped());
        let mut process = Process::spawn(tool).expect("the tool");
        let (_, errors) = process.pipes();
        let status = process.end().await;
        let told = std::io::read_to_string(errors.expect("a pipe")).expect("text");
        assert_eq!((status.code(), &*told), (Some(141), ""), "{arguments:?}");
    }
    // Nor is one whose errors nobody reads.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut tool = dlock(&url, &["run", "free", "--", "/no/such/thing"]);
    tool.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(writer);
    let status = Process::spawn(tool).expect("the tool").end().await;
    assert_eq!(status.code(), Some(127));
}

/// What is wrong with the rest is said all the same, in a line.
#[tokio::test]
async fn arguments_need_not_be_text() {
    let odd = OsStr::from_bytes(b"bad\xff");
    let mut tool = dlock(
        "redis://127.0.0.1:1",
        &["run", "-n", "-w", "1s", "k", "--", "echo"],
    );
    tool.arg(odd);
    let refused = ran(tool).await;
    assert_eq!(code(&refused), 64, "{}", stderr(&refused));
    assert_eq!(stderr(&refused).lines().count(), 1);
    let mut tool = dlock("redis://127.0.0.1:1", &["show"]);
    tool.arg(odd);
    let refused = ran(tool).await;
    assert_eq!(code(&refused), 64, "{}", stderr(&refused));
}

/// Whichever store it is, and whether it answers. One that does not exits alike everywhere.
#[tokio::test]
async fn passwords_are_never_shown() {
    let server = Server::<PostgreSql>::shared().await;
    let database = server.database().await;
    let postgres = server.url(&database, server.port());
    let (_, host) = postgres.split_once("//").expect("a URL");
    let host = host.rsplit('@').next().expect("a host");
    let login = |url: &str| url.replace("LOGIN", "postgres:hunter2");
    let here = login(&format!("postgres://LOGIN@{host}?create_tables=true"));
    let several = "LOGIN@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3";
    let mut down = vec![
        login("postgres://LOGIN@127.0.0.1:1/locks"),
        login("mysql://LOGIN@127.0.0.1:1/locks"),
        login("zookeeper://LOGIN@127.0.0.1:1"),
        "memcached://127.0.0.1:1".to_owned(),
        login("redis://LOGIN@127.0.0.1:1"),
        login(&format!(
            "redis+sentinel://{several}/master?sentinel_password=hunter2"
        )),
        login(&format!("redis+cluster://{several}")),
        login(&format!("redis+redlock://{several}")),
    ];
    if cfg!(feature = "etcd") {
        down.push(login("etcd://LOGIN@127.0.0.1:1"));
    }
    let all_down = down.iter().map(|url| (url, Some(69)));
    // It knows no users, and is not asked.
    let refused = login("memcached://LOGIN@127.0.0.1:1");
    // A busy machine may be too slow for the one that answers.
    for (url, expected) in all_down.chain([(&refused, Some(78)), (&here, None)]) {
        for arguments in [
            &["-v", "run", "k", "--", "true"][..],
            &["-v", "ls", "-o", "json"],
            &["-v", "show", "k"],
            &["-v", "break", "k", "--yes"],
            &["-v", "doctor"],
        ] {
            let mut tool = dlock(url, arguments);
            tool.env("DLOCK_REQUEST_TIMEOUT", "2s");
            let run = ran(tool).await;
            let said = stdout(&run) + &stderr(&run);
            assert!(!said.is_empty(), "{arguments:?}");
            assert!(!said.contains("hunter2"), "{arguments:?}: {said}");
            if let Some(expected) = expected {
                assert_eq!(code(&run), expected, "{url}: {arguments:?}: {said}");
            }
        }
    }
    // One that is shown, and one that cannot be: that is asked until the time is over.
    let soon = [("DLOCK_REQUEST_TIMEOUT", "2s")];
    for (url, set) in [(&here, &[][..]), (&down[0], &soon[..])] {
        let mut top = Screen::of_tool(url, &["-v", "top"], (24, 100), set);
        let shown = |text: &str| text.contains("nothing is held") || text.contains("refused");
        let text = top.until("it is told", shown).await;
        assert!(!text.contains("hunter2"), "{text}");
        top.types("q");
        top.ends();
    }
}
