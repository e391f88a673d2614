//! The tool on each store that the library speaks for.

use crate::breaking::breaks;
use crate::databases::mysql::MariaDb;
use crate::databases::postgres::PostgreSql;
use crate::databases::server::Server;
use crate::support::cluster::Cluster;
use crate::support::dir::TempDir;
use crate::support::memcached::Memcached;
use crate::support::nodes::Nodes;
use crate::support::program::Program;
use crate::support::sentinel::Deployment;
use crate::{code, dlock, nobody_watches, printed, ran, redis, stderr, stdout};

/// Takes a lock, finds it busy, shows who has it, and gives it back.
async fn serves(url: &str) {
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
    assert_eq!(
        token.is_empty(),
        url.starts_with("memcached:"),
        "{url}: {token}"
    );

    let busy = ran(dlock(url, &["run", "-n", "k", "--", "true"])).await;
    assert_eq!(code(&busy), 75, "{url}: {}", stderr(&busy));
    let shown = ran(dlock(url, &["show", "k"])).await;
    assert_eq!(code(&shown), 0, "{url}: {}", stderr(&shown));
    assert!(
        stdout(&shown).contains("write"),
        "{url}: {}",
        stdout(&shown)
    );
    assert!(
        stdout(&shown).contains("\nIn the store:\n"),
        "{url}: {}",
        stdout(&shown)
    );
    let json = ran(dlock(url, &["show", "k", "-o", "json"])).await;
    let waiters = match url.starts_with("memcached:") {
        true => "\"waiters\": null",
        false => "\"waiters\": 0",
    };
    let json = stdout(&json);
    assert!(json.contains(waiters), "{url}: {json}");
    if !url.starts_with("memcached:") {
        let listed = ran(dlock(url, &["ls"])).await;
        assert_eq!(code(&listed), 0, "{url}: {}", stderr(&listed));
        assert!(
            stdout(&listed).contains("\nk  "),
            "{url}: {}",
            stdout(&listed)
        );
    }

    holder.process.terminate();
    assert_eq!(code(&holder.end().await), 143, "{url}");
    breaks(url).await;
    nobody_watches(&command).await;
    let free = ran(dlock(url, &["run", "-n", "k", "--", "echo", "ran"])).await;
    assert_eq!(
        (code(&free), &*stdout(&free)),
        (0, "ran\n"),
        "{url}: {}",
        stderr(&free)
    );

    let healthy = ran(dlock(url, &["doctor"])).await;
    let said = stdout(&healthy);
    assert_eq!(code(&healthy), 0, "{url}: {said}{}", stderr(&healthy));
    for check in ["connect", "round trip", "notify", "clock", "lock"] {
        let is_told = |line: &str| line[4..].trim_start().starts_with(check);
        assert!(said.lines().any(is_told), "{url}: no {check}: {said}");
    }
}

#[tokio::test]
async fn redis_serves() {
    serves(&redis().await.url()).await;
}

#[tokio::test]
async fn redlock_serves() {
    serves(&Nodes::start(3).await.url()).await;
}

#[tokio::test]
async fn a_cluster_serves() {
    let cluster = Cluster::of_masters(3).await;
    serves(&cluster.url("")).await;
}

#[tokio::test]
async fn sentinels_serve() {
    serves(&Deployment::watchful().await.url("")).await;
}

#[tokio::test]
async fn sqlite_serves() {
    let dir = TempDir::default();
    serves(&format!("sqlite:{}", dir.path().join("locks.db").display())).await;
}

#[tokio::test]
async fn memcached_serves() {
    let server = crate::support::server::Server::<Memcached>::start().await;
    serves(&server.url()).await;
}

#[tokio::test]
async fn postgres_serves() {
    let server = Server::<PostgreSql>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    serves(&format!("{url}?create_tables=true")).await;
}

#[tokio::test]
async fn mysql_serves() {
    let server = Server::<MariaDb>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    serves(&format!("{url}?create_tables=true")).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn etcd_serves() {
    let server = crate::support::etcd::EtcdServer::start().await;
    serves(&crate::support::etcd::etcd_url(&[server.port()])).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn zookeeper_serves() {
    let server = crate::support::zookeeper::Setup::default().start().await;
    serves(&format!("zookeeper://127.0.0.1:{}", server.port())).await;
}
