//! `dlock doctor` on etcd.

#![cfg(feature = "etcd")]

use std::process::Output;

use crate::doctor::{asked, checks, told};
use crate::support::etcd::{Cluster, EtcdServer, Setup, etcd_url};
use crate::{code, dlock, stderr, stdout};

/// With time for three members on a busy machine.
async fn doctor(url: &str) -> Output {
    let tool = || {
        let mut tool = dlock(url, &["doctor"]);
        tool.env("DLOCK_REQUEST_TIMEOUT", "10s");
        tool
    };
    asked(tool, &["notify", "clock"]).await
}

#[tokio::test]
async fn all_is_well() {
    let server = EtcdServer::start().await;
    let well = doctor(&etcd_url(&[server.port()])).await;
    assert_eq!(code(&well), 0, "{}{}", stdout(&well), stderr(&well));
    let all = [
        "connect",
        "server",
        "members",
        "version",
        "space",
        "tokens",
        "round trip",
        "notify",
        "clock",
        "lock",
        "list",
    ];
    assert_eq!(checks(&well, "ok"), all, "{}", stdout(&well));
    assert_eq!(stdout(&well).lines().count(), all.len());
}

/// The URL names one of three.
#[tokio::test]
async fn members_that_the_url_does_not_name() {
    let mut cluster = Cluster::start().await;
    let url = etcd_url(&cluster.ports()[..1]);
    let well = doctor(&url).await;
    let said = stdout(&well);
    assert_eq!(code(&well), 0, "{said}{}", stderr(&well));
    assert_eq!(checks(&well, "warn"), [""; 0], "{said}");
    let versions = told(&well, "ok").into_iter();
    let versions: Vec<_> = versions.filter(|(check, _)| check == "version").collect();
    for port in cluster.ports() {
        let place = format!("127.0.0.1:{port}: version 3.");
        let is_told = versions.iter().any(|(_, what)| what.starts_with(&place));
        assert!(is_told, "{place}: {said}");
    }
    assert_eq!(versions.len(), 3, "{said}");

    let silent = cluster.ports()[2];
    cluster.servers[2].kill();
    // It may have been the leader.
    cluster.leader().await;
    let output = doctor(&url).await;
    let said = stdout(&output);
    assert_eq!(code(&output), 0, "{said}{}", stderr(&output));
    let warned = told(&output, "warn");
    let [(check, message)] = &warned[..] else {
        panic!("one warning: {said}{}", stderr(&output));
    };
    assert_eq!(check, "members");
    for part in ["2 of 3 members", "m2", &format!("127.0.0.1:{silent}")] {
        assert!(message.contains(part), "no {part:?}: {message}");
    }
}

/// Every lock writes to it.
#[tokio::test]
async fn a_database_that_is_full() {
    let setup = Setup::default().with("--quota-backend-bytes=2000000");
    let server = setup.start().await;
    let value = "x".repeat(100_000);
    let mut number = 0;
    let is_full = async |number: usize| {
        let key = format!("fill{number}");
        let put = server.try_control(&["put", &key, &value]).await;
        !put.status.success()
    };
    while !is_full(number).await {
        assert!(number < 100, "it is not full");
        number += 1;
    }
    let output = doctor(&etcd_url(&[server.port()])).await;
    let said = stdout(&output);
    assert_eq!(code(&output), 69, "{said}{}", stderr(&output));
    let failed = told(&output, "fail");
    let full = failed.iter().find(|(check, _)| check == "alarm");
    let (_, message) = full.unwrap_or_else(|| panic!("no alarm: {said}"));
    assert!(message.contains("etcdctl alarm disarm"), "{message}");
}
