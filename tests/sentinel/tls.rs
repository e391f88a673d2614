//! Encrypted connections to the sentinels and to the master, each of which has
//! an authority of its own here.

use std::time::Duration;

use dlock::backend::redis::Redis;

use crate::own_tls::trusting;
use crate::support::dir::TempDir;
use crate::support::locks::{by, config, connect, connecting, had, held};
use crate::support::redis::{RedisServer, Setup, Watched};
use crate::support::sentinel::{LONG, MASTER};
use crate::support::wait::HANG;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The certificates of those whom a client is to trust, in one file.
fn authorities(dir: &TempDir, trusted: &[&RedisServer]) -> String {
    let files = trusted.iter().map(|server| {
        let (_, certificates) = server.tls();
        std::fs::read_to_string(&certificates.authority).expect("a certificate")
    });
    let path = dir.path().join("authorities.pem");
    std::fs::write(&path, files.collect::<String>()).expect("a file of our own");
    path.display().to_string()
}

#[tokio::test]
async fn sentinels_and_master_are_trusted_or_refused() {
    let master = Setup::default().tls().password("pass word").start().await;
    let (port, _) = master.tls();
    // They name the encrypted port, and need not reach it themselves.
    let sentinel = async || {
        let watched = Watched {
            name: MASTER,
            port,
            password: None,
            down_after: LONG,
        };
        Setup::default().tls().watches(watched).start().await
    };
    let sentinels: [RedisServer; 3] = tokio::join!(sentinel(), sentinel(), sentinel()).into();
    let hosts = sentinels
        .each_ref()
        .map(|sentinel| format!("127.0.0.1:{}", sentinel.tls().0));
    let url = |scheme: &str, authorities: &str| {
        format!(
            "{scheme}://:pass%20word@{}/{MASTER}{authorities}",
            hosts.join(",")
        )
    };
    let [a, b, c] = &sentinels;

    let dir = TempDir::default();
    let all = authorities(&dir, &[&master, a, b, c]);
    let manager = connect(config(&url("rediss+sentinel", &format!("?ca={all}")))).await;
    let guard = held(manager.lock("key")).await;
    let exists: u32 = master.command(&["EXISTS", "dlock:{key}"]).await;
    assert_eq!(exists, 1);
    guard.release().await.expect("the release");

    // The same from memory.
    let known = [&master, a, b, c].map(|server| server.tls().1);
    let store = Redis::from_url(&url("redis+sentinel", "")).expect("a URL");
    let store = store.tls(trusting(&known));
    had(&by(store.request_timeout(HANG)).await, "key").await;

    let (other, third) = (TempDir::default(), TempDir::default());
    let not_the_master = authorities(&other, &[a, b, c]);
    let no_sentinel = authorities(&third, &[&master]);
    for url in [
        url("rediss+sentinel", &format!("?ca={not_the_master}")),
        url("rediss+sentinel", &format!("?ca={no_sentinel}")),
        url("rediss+sentinel", ""),
        url("redis+sentinel", ""),
    ] {
        let error = connecting(&url, REQUEST_TIMEOUT)
            .await
            .expect_err("nobody to be trusted");
        let message = error.to_string();
        assert!(message.contains("127.0.0.1:"), "{message}");
        assert!(!message.contains("pass word"), "{message}");
    }
}
