//! `dlock doctor`, where all is well and where it is not.

use std::process::{Command, Output};
use std::time::Duration;

use crate::databases::mysql::MariaDb;
use crate::databases::postgres::PostgreSql;
use crate::databases::server::Server;
use crate::support::calm::unless_it_stands_still;
use crate::support::cluster::Cluster;
use crate::support::machine::Machine;
use crate::support::nodes::Nodes;
use crate::support::redis::{RedisServer, Setup};
use crate::support::sentinel::{Deployment, Passwords};
use crate::support::wait::until;
use crate::{code, dlock, ran, redis, stderr, stdout, with_defaults};

/// Half of the time after which a server of a quorum that has not answered, where most of them have,
/// is told as one that does not.
pub(crate) const IN_TIME: Duration = Duration::from_millis(250);

/// The checks of this level, and what is said of them.
pub(crate) fn told(output: &Output, level: &str) -> Vec<(String, String)> {
    let said = stdout(output);
    let lines = said.lines().filter_map(|line| {
        let rest = line.strip_prefix(level)?.trim_start();
        let (check, message) = rest.split_once("  ")?;
        Some((check.to_owned(), message.trim_start().to_owned()))
    });
    lines.collect()
}

pub(crate) fn checks(output: &Output, level: &str) -> Vec<String> {
    let told = told(output, level).into_iter();
    told.map(|(check, _)| check).collect()
}

pub(crate) async fn doctor(url: &str) -> Output {
    asked(|| with_defaults(url, &["doctor"]), &["notify", "clock"]).await
}

/// How soon somebody is told, and how far two clocks are apart, is up to the machine too. So it is
/// asked once more, and not for ever, if it warns of these.
pub(crate) async fn asked(tool: impl Fn() -> Command, of_machine: &[&str]) -> Output {
    let is_calm = |output: &Output| {
        let warned = checks(output, "warn");
        !warned.iter().any(|check| of_machine.contains(&&**check))
    };
    let mut told = ran(tool()).await;
    for _ in 1..5 {
        if is_calm(&told) {
            break;
        }
        told = ran(tool()).await;
    }
    told
}

/// Nothing but the one that is looked for is wrong.
fn warns_of(output: &Output, check: &str, says: &str) {
    let warned = told(output, "warn");
    let [(what, message)] = &warned[..] else {
        panic!("one warning: {}{}", stdout(output), stderr(output));
    };
    assert!(what == check && message.contains(says), "{what}: {message}");
    assert_eq!(code(output), 0, "{}", stdout(output));
    assert_eq!(checks(output, "fail"), [""; 0]);
}

async fn durable() -> RedisServer {
    Setup::default().append_only().start().await
}

#[tokio::test]
async fn all_is_well() {
    let server = durable().await;
    let well = doctor(&server.url()).await;
    assert_eq!(code(&well), 0, "{}{}", stdout(&well), stderr(&well));
    let all = [
        "connect",
        "server",
        "version",
        "eviction",
        "persistence",
        "clock",
        "tokens",
        "round trip",
        "notify",
        "lock",
        "list",
    ];
    assert_eq!(checks(&well, "ok"), all, "{}", stdout(&well));
    assert_eq!(stdout(&well).lines().count(), all.len());
    // Its lock is gone, and so is who waited.
    let mut keys = server.keys().await;
    keys.retain(|key| !key.starts_with("dlock:alive:") && key != "dlock:token");
    assert_eq!(keys, [""; 0]);

    let json = async || {
        let json = ran(dlock(&server.url(), &["doctor", "-o", "json"])).await;
        assert_eq!(code(&json), 0);
        stdout(&json)
    };
    // A busy machine is warned of here too.
    let is_well = |json: &String| json.matches("\"level\": \"ok\"").count() == all.len();
    let json = until("all is well", json, is_well).await;
    for check in all {
        assert!(json.contains(&format!("\"check\": \"{check}\"")), "{json}");
    }
}

/// The services' own ttl, and not that of the doctor's lock.
#[tokio::test]
async fn a_ttl_that_is_short_for_its_requests() {
    let server = durable().await;
    let short = || {
        let mut tool = with_defaults(&server.url(), &["doctor"]);
        tool.env("DLOCK_TTL", "5s");
        tool
    };
    let output = asked(short, &["notify", "clock"]).await;
    warns_of(&output, "setting", "a ttl of 5s is shorter");

    for timeout in ["5s", "20s"] {
        let mut tool = dlock(&server.url(), &["-v", "doctor"]);
        tool.env("DLOCK_REQUEST_TIMEOUT", timeout)
            .env("DLOCK_TTL", "60s");
        let well = ran(tool).await;
        assert!(!stderr(&well).contains("is shorter"), "{}", stderr(&well));
    }
}

#[tokio::test]
async fn a_server_that_drops_locks() {
    let server = durable().await;
    for (name, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")] {
        server.command::<()>(&["CONFIG", "SET", name, value]).await;
    }
    let output = doctor(&server.url()).await;
    warns_of(&output, "eviction", "allkeys-lru");
    assert!(stdout(&output).contains("set noeviction"));
}

#[tokio::test]
async fn a_server_that_forgets() {
    let output = doctor(&redis().await.url()).await;
    warns_of(&output, "persistence", "set `appendonly yes`");
}

/// The servers that the tests share wait for no disk.
#[tokio::test]
async fn a_database_that_may_lose_what_it_has_confirmed() {
    let server = Server::<PostgreSql>::shared().await;
    let url = server.url(&server.database().await, server.port());
    let output = doctor(&format!("{url}?create_tables=true")).await;
    warns_of(&output, "persistence", "set `fsync`");
    assert!(checks(&output, "ok").contains(&"writes".to_owned()));
    let server = Server::<MariaDb>::shared().await;
    let url = server.url(&server.database().await, server.port());
    let output = doctor(&format!("{url}?create_tables=true")).await;
    warns_of(
        &output,
        "persistence",
        "set `innodb_flush_log_at_trx_commit`",
    );
}

#[tokio::test]
async fn a_clock_that_is_wrong() {
    let machine = Machine::default();
    let server = Setup::default().append_only().on(&machine).start().await;
    machine.clock_ahead(Duration::from_secs(3600));
    let output = asked(|| dlock(&server.url(), &["doctor"]), &["notify"]).await;
    warns_of(&output, "clock", "ahead of this machine's");
}

/// The clock of each node of a majority is looked at, and the node is named whose clock is wrong.
#[tokio::test]
async fn a_node_whose_clock_is_wrong() {
    unless_it_stands_still(IN_TIME, async || {
        let machine = Machine::default();
        let setup = || Setup::default().append_only();
        let nodes = Nodes::set_up(vec![setup(), setup().on(&machine), setup()]).await;
        machine.clock_back(Duration::from_secs(3600));
        let output = asked(|| dlock(&nodes.url(), &["doctor"]), &["notify"]).await;
        warns_of(&output, "clock", "behind this machine's");
        let warned = told(&output, "warn");
        let place = |node: usize| format!("127.0.0.1:{}: its clock", nodes[node].port());
        assert!(warned[0].1.contains(&place(1)), "{}", stdout(&output));
        let well = told(&output, "ok").into_iter();
        let well: Vec<_> = well.filter(|(check, _)| check == "clock").collect();
        assert_eq!(well.len(), 2, "{}", stdout(&output));
        for node in [0, 2] {
            let is_named = well.iter().any(|(_, what)| what.contains(&place(node)));
            assert!(is_named, "{}", stdout(&output));
        }
    })
    .await;
}

/// The same of the masters that vote.
#[tokio::test]
async fn the_clocks_of_masters_that_vote() {
    let cluster = Cluster::of_masters(3).await;
    let port = cluster.masters()[0].port();
    let url = format!("redis+cluster://127.0.0.1:{port}?quorum=masters");
    // With time for each of them on a busy machine.
    let patient = || {
        let mut tool = dlock(&url, &["doctor"]);
        tool.env("DLOCK_REQUEST_TIMEOUT", "10s");
        tool
    };
    let output = asked(patient, &["notify", "clock"]).await;
    let clocks = told(&output, "ok").into_iter();
    let clocks: Vec<_> = clocks.filter(|(check, _)| check == "clock").collect();
    assert_eq!(clocks.len(), 3, "{}", stdout(&output));
    for master in cluster.masters() {
        let place = format!("127.0.0.1:{}: its clock", master.port());
        let is_named = clocks.iter().any(|(_, what)| what.contains(&place));
        assert!(is_named, "{place}: {}", stdout(&output));
    }
}

#[tokio::test]
async fn a_node_that_is_down() {
    let setup = || Setup::default().append_only();
    let mut nodes = Nodes::set_up(vec![setup(), setup(), setup()]).await;
    let url = nodes.url();
    nodes[1].kill();
    let output = doctor(&url).await;
    assert_eq!(code(&output), 0, "{}{}", stdout(&output), stderr(&output));
    let warned = told(&output, "warn");
    let address = format!("127.0.0.1:{}", nodes[1].port());
    assert!(!warned.is_empty(), "{}", stdout(&output));
    for (_, message) in &warned {
        assert!(message.contains(&address), "{}", stdout(&output));
    }
    assert!(warned.iter().any(|(check, _)| check == "server"));
    let versions = checks(&output, "ok");
    let versions = versions.iter().filter(|check| *check == "version");
    assert_eq!(versions.count(), 2, "{}", stdout(&output));
}

#[tokio::test]
async fn a_store_that_is_down() {
    let mut server = redis().await;
    let url = server.url();
    server.kill();
    let output = doctor(&url).await;
    assert_eq!(code(&output), 69, "{}", stdout(&output));
    assert_eq!(checks(&output, "fail"), ["connect"]);
}

#[tokio::test]
async fn a_password_that_is_wrong_is_not_shown() {
    let server = Setup::default().password("hunter2").start().await;
    let url = format!("redis://:hunter3@127.0.0.1:{}", server.port());
    for arguments in [&["doctor"][..], &["-v", "doctor", "-o", "json"]] {
        let output = ran(dlock(&url, arguments)).await;
        let said = stdout(&output) + &stderr(&output);
        assert_eq!(code(&output), 78, "{said}");
        assert!(said.contains("fail") && said.contains("connect"), "{said}");
        assert!(!said.contains("hunter"), "{said}");
    }
}

#[tokio::test]
async fn a_user_of_redis_without_rights() {
    let server = durable().await;
    let user = |rights: &'static [&'static str]| {
        let words = ["ACL", "SETUSER", "app", "reset", "on", ">hunter2"];
        [&words[..], rights].concat()
    };
    let url = format!("redis://app:hunter2@127.0.0.1:{}", server.port());

    // Nothing at all, then nothing of locks.
    for rights in [
        &["+@connection"][..],
        &["~*", "&*", "+@all", "-set", "-eval", "-evalsha"],
    ] {
        server.command::<()>(&user(rights)).await;
        let output = doctor(&url).await;
        let said = stdout(&output) + &stderr(&output);
        assert_eq!(code(&output), 77, "{rights:?}: {said}");
        assert_eq!(checks(&output, "fail").len(), 1, "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }

    // All that locks need, and not what tells whether they are safe: less of it without `CONFIG`,
    // as on a managed server, and none without `INFO` too.
    for (name, value) in [("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")] {
        server.command::<()>(&["CONFIG", "SET", name, value]).await;
    }
    let rights = async |rights| {
        server.command::<()>(&user(rights)).await;
        doctor(&url).await
    };
    let output = rights(&["~*", "&*", "+@all", "-config"]).await;
    warns_of(&output, "eviction", "allkeys-lru");
    let said = stdout(&output);
    assert!(
        said.contains("appendonly yes") && said.contains("which it does not say"),
        "{said}"
    );
    let output = rights(&["~*", "&*", "+@all", "-config", "-info"]).await;
    warns_of(&output, "eviction", "CONFIG GET");
}

/// Named whether its place is in the URL or not, and the others are looked at all the same.
#[tokio::test]
async fn a_master_of_a_cluster_that_is_not_there() {
    for killed in [true, false] {
        let mut cluster = Cluster::of_masters(3).await;
        let url = format!("redis+cluster://127.0.0.1:{}", cluster.masters()[0].port());
        // The locks of these tests are in the slots of others.
        let victim = &mut cluster.servers[1];
        match killed {
            true => victim.kill(),
            false => victim.pause(),
        }
        let address = format!("127.0.0.1:{}", victim.port());
        let mut tool = dlock(&url, &["doctor"]);
        tool.env("DLOCK_REQUEST_TIMEOUT", "4s");
        let output = ran(tool).await;
        let said = stdout(&output) + &stderr(&output);
        let warned = told(&output, "warn");
        let of_it = warned.iter().find(|(check, message)| {
            check == "server" && message.contains(&address) && message.contains("check")
        });
        assert!(of_it.is_some(), "killed: {killed}: {said}");
        let versions = checks(&output, "ok");
        let versions = versions.iter().filter(|check| *check == "version");
        assert_eq!(versions.count(), 2, "killed: {killed}: {said}");
        if !killed {
            cluster.servers[1].resume();
        }
    }
}

/// Most of them go on naming the master, and the next that goes would take the locks along.
#[tokio::test]
async fn a_sentinel_that_is_not_there() {
    let mut deployment = Deployment::calm(&Passwords::default(), |port| port).await;
    let url = deployment.url("");
    let ports: Vec<_> = deployment.sentinels.iter().map(RedisServer::port).collect();
    let address = |number: usize| format!("sentinel at 127.0.0.1:{}", ports[number]);
    for killed in [false, true] {
        match killed {
            false => deployment.sentinels[0].pause(),
            true => {
                deployment.sentinels[0].resume();
                deployment.sentinels[0].kill();
            }
        }
        let mut tool = dlock(&url, &["doctor"]);
        tool.env("DLOCK_REQUEST_TIMEOUT", "10s");
        let output = ran(tool).await;
        let said = stdout(&output) + &stderr(&output);
        assert_eq!(code(&output), 0, "killed: {killed}: {said}");
        let names = |level: &str, number: usize| {
            let told = told(&output, level).into_iter();
            let mut of_servers = told.filter(|(check, _)| check == "server");
            of_servers.any(|(_, what)| what.contains(&address(number)))
        };
        assert!(names("warn", 0), "killed: {killed}: {said}");
        for number in [1, 2] {
            assert!(names("ok", number), "killed: {killed}: {said}");
        }
    }
}
