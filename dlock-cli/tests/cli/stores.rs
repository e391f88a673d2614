//! The tool on each store that the library speaks for.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::breaking::{all_owners, breaks, waits};
use crate::databases::mysql::MariaDb;
use crate::databases::postgres::PostgreSql;
use crate::databases::server::Server;
use crate::doctor::IN_TIME;
use crate::screen::Screen;
use crate::support::calm::unless_it_stands_still;
use crate::support::cluster::Cluster;
use crate::support::dir::TempDir;
use crate::support::memcached::Memcached;
use crate::support::nodes::Nodes;
use crate::support::program::Program;
use crate::support::sentinel::Deployment;
use crate::support::wait::{HANG, until, within};
#[cfg(feature = "zookeeper")]
use crate::{LONG_SESSION, with_defaults};
use crate::{
    code, dlock, holder, nobody_watches, printed, ran, ran_in_time, redis, sqlite, stderr, stdout,
};

/// What a store can do, where not all can.
#[derive(Clone, Copy)]
struct Can {
    readers: bool,
    permits: bool,
    once: bool,
    /// Let a waiter out of its queue.
    take_out: bool,
    /// Give out tokens.
    tokens: bool,
    /// Tell what their clock shows.
    clock: bool,
    /// What the doctor warns of, on a server as the tests start it.
    warns: &'static [&'static str],
}

const ALL: Can = Can {
    readers: true,
    permits: true,
    once: true,
    take_out: true,
    tokens: true,
    clock: true,
    warns: &[],
};

/// Every command but `completions`, on one store: locks are taken, found busy, waited for,
/// looked at, broken and given back.
async fn serves(url: &str, can: Can) {
    let hold = [
        "run",
        "k",
        "--",
        "sh",
        "-c",
        "echo pid $$; echo token $DLOCK_TOKEN; sleep 1000",
    ];
    let mut holder = Program::start(dlock(url, &hold));
    let command = printed(&holder, "pid ").await;
    let token = printed(&holder, "token").await;
    assert_eq!(!token.is_empty(), can.tokens, "{url}: {token}");

    let busy = ran(dlock(url, &["run", "-n", "k", "--", "true"])).await;
    assert_eq!(code(&busy), 75, "{url}: {}", stderr(&busy));
    let late = ran_in_time(|| dlock(url, &["wait", "-w", "2s", "k"])).await;
    assert_eq!(code(&late), 75, "{url}: {}", stderr(&late));
    is_shown(url).await;
    takes_out(url, can).await;

    holder.process.terminate();
    assert_eq!(code(&holder.end().await), 143, "{url}");
    breaks(url).await;
    nobody_watches(&command).await;
    let waited = ran(dlock(url, &["wait", "k"])).await;
    assert_eq!(code(&waited), 0, "{url}: {}", stderr(&waited));
    let free = ran(dlock(url, &["run", "-n", "k", "--", "echo", "ran"])).await;
    assert_eq!(
        (code(&free), &*stdout(&free)),
        (0, "ran\n"),
        "{url}: {}",
        stderr(&free)
    );
    is_shared(url, can).await;
    is_remembered(url, can).await;
    unless_it_stands_still(IN_TIME, async || is_healthy(url, can).await).await;
}

/// By all that look.
async fn is_shown(url: &str) {
    let shown = ran(dlock(url, &["show", "k"])).await;
    let text = stdout(&shown);
    assert_eq!(code(&shown), 0, "{url}: {}", stderr(&shown));
    assert!(text.contains("write"), "{url}: {text}");
    assert!(text.contains("\nIn the store:\n"), "{url}: {text}");

    // What crawls through the items of memcached may not have come by yet.
    let list = async || {
        let listed = ran(dlock(url, &["ls", "k", "-o", "json"])).await;
        assert_eq!(code(&listed), 0, "{url}: {}", stderr(&listed));
        let list: Value = serde_json::from_str(&stdout(&listed)).expect("an array");
        let keys = list.as_array().expect("an array").iter();
        let keys: Vec<_> = keys.map(|lock| lock["key"].clone()).collect();
        keys
    };
    until("it is listed", list, |keys| *keys == ["k"]).await;
    let watch = Program::start(dlock(url, &["ls", "k", "--watch"]));
    let row = printed(&watch, "k  ").await;
    assert!(row.contains("write"), "{url}: {row}");
    drop(watch);

    let mut top = Screen::of_tool(url, &["top", "--interval", "200ms"], (24, 100), &[]);
    let row = |text: &str| text.lines().any(|line| line.starts_with("k "));
    top.until("it is there", row).await;
    top.types("q");
    assert_eq!(top.ends(), Some(0), "{url}");

    // It says that it shows a part.
    let _other = holder(url, "k2").await;
    let limited = ["top", "k", "--interval", "200ms", "--limit", "1"];
    let top = Screen::of_tool(url, &limited, (24, 100), &[]);
    let part = |text: &str| row(text) && text.contains("store: the first 1 of 2 locks, ");
    top.until("one of two", part).await;
}

async fn takes_out(url: &str, can: Can) {
    if !can.take_out {
        let refused = ran(dlock(url, &["break", "k", "--waiter", "somebody"])).await;
        assert_eq!(code(&refused), 78, "{url}: {}", stderr(&refused));
        assert!(
            stderr(&refused).contains("waiter"),
            "{url}: {}",
            stderr(&refused)
        );
        return;
    }
    let mut out = waits(url, 0).await;
    let waiter = &all_owners(url, "queue", 1).await[0];
    let taken = ran(dlock(url, &["break", "k", "--waiter", waiter])).await;
    assert_eq!(code(&taken), 0, "{url}: {}", stderr(&taken));
    assert_eq!(code(&within(HANG, out.end()).await), 75, "{url}");
}

/// One who has it, and one beside it.
async fn is_shared(url: &str, can: Can) {
    for (options, can) in [
        (&["--read"][..], can.readers),
        (&["--permits", "2"], can.permits),
    ] {
        let run = |rest: &[&str]| dlock(url, &[&["run", "-n"], options, rest].concat());
        let beside = ["shared", "--", "echo", "ran"];
        if !can {
            let refused = ran(run(&beside)).await;
            assert_eq!(code(&refused), 78, "{url}: {}", stderr(&refused));
            assert_eq!(stdout(&refused), "", "{url}");
            continue;
        }
        let hold = ["shared", "--", "sh", "-c", "echo pid $$; sleep 1000"];
        let mut one = Program::start(run(&hold));
        printed(&one, "pid ").await;
        let other = ran(run(&beside)).await;
        assert_eq!(
            (code(&other), &*stdout(&other)),
            (0, "ran\n"),
            "{url}: {options:?}: {}",
            stderr(&other)
        );
        one.process.terminate();
        assert_eq!(code(&one.end().await), 143, "{url}");
    }
}

async fn is_remembered(url: &str, can: Can) {
    let once = ["run", "--once", "1h", "report", "--", "echo", "ran"];
    let forget = ["forget", "report"];
    if !can.once {
        for refused in [&once[..], &forget] {
            let refused = ran(dlock(url, refused)).await;
            assert_eq!(code(&refused), 78, "{url}: {}", stderr(&refused));
            assert_eq!(stdout(&refused), "", "{url}");
        }
        return;
    }
    for printed in ["ran\n", "", "ran\n"] {
        let run = ran(dlock(url, &once)).await;
        assert_eq!(
            (code(&run), &*stdout(&run)),
            (0, printed),
            "{url}: {}",
            stderr(&run)
        );
        if printed.is_empty() {
            let told = stderr(&run);
            assert!(told.contains("done already"), "{url}: {told}");
            let forgotten = ran(dlock(url, &forget)).await;
            assert_eq!(code(&forgotten), 0, "{url}: {}", stderr(&forgotten));
        }
    }
}

/// All is well, but for what is known. How soon somebody is told, and how far two clocks
/// are apart, is up to the machine too.
async fn is_healthy(url: &str, can: Can) {
    let healthy = ran(dlock(url, &["doctor"])).await;
    let said = stdout(&healthy);
    assert_eq!(code(&healthy), 0, "{url}: {said}{}", stderr(&healthy));
    let of_machine = ["notify", "clock"];
    for check in ["connect", "round trip", "lock", "list", "tokens"] {
        assert!(is_told(&said, &["ok"], check), "{url}: no {check}: {said}");
    }
    for check in of_machine {
        let levels = ["ok", "warn"];
        assert!(is_told(&said, &levels, check), "{url}: no {check}: {said}");
    }
    assert_eq!(!said.contains("not compared"), can.clock, "{url}: {said}");
    let warned = said.lines().filter_map(|line| line.strip_prefix("warn  "));
    let warned = warned.filter_map(|rest| rest.split("  ").next());
    let warned: BTreeSet<_> = warned.filter(|check| !of_machine.contains(check)).collect();
    let known: BTreeSet<_> = can.warns.iter().copied().collect();
    assert_eq!(warned, known, "{url}: {said}");
}

fn is_told(said: &str, levels: &[&str], check: &str) -> bool {
    said.lines().any(|line| {
        let rest = levels.iter().find_map(|level| line.strip_prefix(level));
        rest.is_some_and(|rest| rest.trim_start().starts_with(check))
    })
}

/// A server of Redis as the tests start it forgets its locks when it restarts.
const REDIS: Can = Can {
    warns: &["persistence"],
    ..ALL
};

/// A database as the tests start it waits for no disk.
const UNSYNCED: Can = REDIS;

const QUORUM: Can = Can {
    permits: false,
    once: false,
    take_out: false,
    ..REDIS
};

#[tokio::test]
async fn redis_serves() {
    serves(&redis().await.url(), REDIS).await;
}

#[tokio::test]
async fn redis_serves_as_redisson_does() {
    let can = Can {
        readers: false,
        permits: false,
        once: false,
        take_out: false,
        tokens: false,
        ..REDIS
    };
    let server = redis().await;
    let url = server.url();
    let more = if url.contains('?') { "&" } else { "?" };
    serves(&format!("{url}{more}layout=redisson"), can).await;
}

#[tokio::test]
async fn redlock_serves() {
    serves(&Nodes::start(3).await.url(), QUORUM).await;
}

#[tokio::test]
async fn a_cluster_serves() {
    let cluster = Cluster::of_masters(3).await;
    serves(&cluster.url(""), REDIS).await;
    serves(&cluster.url("?quorum=masters"), QUORUM).await;
}

#[tokio::test]
async fn sentinels_serve() {
    serves(&Deployment::watchful().await.url(""), REDIS).await;
}

#[tokio::test]
async fn sqlite_serves() {
    let dir = TempDir::default();
    let url = sqlite(&dir);
    serves(&url, ALL).await;
}

#[tokio::test]
async fn memcached_serves() {
    let server = crate::support::server::Server::<Memcached>::start().await;
    let can = Can {
        readers: false,
        permits: false,
        take_out: false,
        tokens: false,
        ..ALL
    };
    serves(&server.url(), can).await;
}

#[tokio::test]
async fn postgres_serves() {
    let server = Server::<PostgreSql>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    serves(&format!("{url}?create_tables=true"), UNSYNCED).await;
}

#[tokio::test]
async fn mysql_serves() {
    let server = Server::<MariaDb>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    serves(&format!("{url}?create_tables=true"), UNSYNCED).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn etcd_serves() {
    let server = crate::support::etcd::EtcdServer::start().await;
    let url = crate::support::etcd::etcd_url(&[server.port()]);
    let can = Can {
        clock: false,
        ..ALL
    };
    serves(&url, can).await;
    let can = Can {
        readers: false,
        permits: false,
        once: false,
        ..can
    };
    serves(&format!("{url}?recipe=lock-service"), can).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn zookeeper_serves() {
    let server = crate::support::zookeeper::Setup::default().start().await;
    let url = format!("zookeeper://127.0.0.1:{}", server.port());
    let can = Can { once: false, ..ALL };
    serves(&format!("{url}?{LONG_SESSION}"), can).await;
    leaves_time_to_end(&url).await;
}

/// The servers cap the timeout of a session, so that a lease is shorter than what was asked
/// for. It is by that one how long before its end a command can be told.
#[cfg(feature = "zookeeper")]
async fn leaves_time_to_end(url: &str) {
    let run = |options: &[&str]| {
        let rest = ["k", "--", "echo", "ran"];
        let arguments = [&["-v", "run"], options, &rest].concat();
        ran(with_defaults(url, &arguments))
    };
    let too_long = run(&["-k", "10s"]).await;
    let told = stderr(&too_long);
    assert_eq!((code(&too_long), &*stdout(&too_long)), (78, ""), "{told}");
    assert!(told.contains("30s were asked for"), "{told}");
    // What it had, it has given back.
    let shorter = run(&["-n"]).await;
    let told = stderr(&shorter);
    assert_eq!((code(&shorter), &*stdout(&shorter)), (0, "ran\n"), "{told}");
    assert!(told.contains("and not 5s"), "{told}");
}

/// What is done is remembered where servers have nodes that end.
#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn zookeeper_remembers_if_it_may() {
    let setup = crate::support::zookeeper::Setup::default().extended();
    let server = setup.start().await;
    let place = format!("127.0.0.1:{}", server.port());
    let url = format!("zookeeper://{place}?{LONG_SESSION}");
    is_remembered(&url, ALL).await;
    let listed = stdout(&ran(dlock(&url, &["ls"])).await);
    assert!(listed.contains("\nreport  done "), "{listed}");
    let listed: Vec<_> = listed.lines().collect();
    assert_eq!(listed.len(), 2, "{listed:?}");
    let told = stdout(&ran(dlock(&url, &["doctor"])).await);
    assert!(is_told(&told, &["ok"], "once"), "{told}");
}
