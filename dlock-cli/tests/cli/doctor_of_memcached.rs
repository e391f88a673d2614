//! `dlock doctor` on memcached.

use crate::doctor::{checks, doctor, told};
use crate::support::memcached::MemcachedServer;
use crate::{code, stderr, stdout};

#[tokio::test]
async fn all_is_well() {
    let server = MemcachedServer::start().await;
    let well = doctor(&server.url()).await;
    assert_eq!(code(&well), 0, "{}{}", stdout(&well), stderr(&well));
    let all = [
        "connect",
        "server",
        "version",
        "eviction",
        "memory",
        "connections",
        "clock",
        "tokens",
        "round trip",
        "notify",
        "lock",
        "list",
    ];
    assert_eq!(checks(&well, "ok"), all, "{}", stdout(&well));
    assert_eq!(stdout(&well).lines().count(), all.len());
    let said = stdout(&well);
    for part in [
        "version 1.",
        "thrown out nothing",
        " of 67.1 MB",
        " of 1024 connections",
        "its clock is this machine's",
    ] {
        assert!(said.contains(part), "no {part:?}: {said}");
    }
}

#[tokio::test]
async fn a_server_that_throws_locks_out() {
    let server = MemcachedServer::start_with(&["-m", "2"]).await;
    let value = "x".repeat(100_000);
    let mut number = 0;
    while server.stat("evictions") == 0 {
        assert!(number < 1_000, "nothing is thrown out");
        number += 1;
        let set = format!(
            "set fill:{number} 0 0 {} noreply\r\n{value}\r\n",
            value.len()
        );
        assert_eq!(server.talk(set.as_bytes()), b"");
    }
    let output = doctor(&server.url()).await;
    // It is told once, and not again as what connecting warns of.
    let warned = told(&output, "warn").into_iter();
    let warned: Vec<_> = warned.filter(|(check, _)| check != "memory").collect();
    let [(check, message)] = &warned[..] else {
        panic!("one warning: {}{}", stdout(&output), stderr(&output));
    };
    assert_eq!(check, "eviction");
    assert!(message.contains("a server of its own"), "{message}");
    assert_eq!(checks(&output, "fail"), [""; 0]);
}
