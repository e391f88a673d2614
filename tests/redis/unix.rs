//! By the socket of a server on the same machine.

use std::time::Duration;

use crate::support::locks::{config, connect, connecting, had, held, queued, says, served, shown};
use crate::support::redis::{RedisServer, Setup};

/// An outage would be told as one after this.
const SOON: Duration = Duration::from_secs(15);

fn url(login: &str, server: &RedisServer, more: &str) -> String {
    format!("redis+unix://{login}{}{more}", server.socket().display())
}

#[tokio::test]
async fn locks_are_those_of_the_server() {
    let server = Setup::default().password("pass word").start().await;
    let here = connect(config(&url(":pass%20word@", &server, ""))).await;
    let there = connect(config(&server.url())).await;
    let guard = held(here.lock("key")).await;
    assert_eq!(shown(&there, "key").await.holders.len(), 1);
    let waiting = tokio::spawn(there.lock("key").acquire());
    queued(&here, "key", 1).await;
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");

    let third = connect(config(&url(":pass%20word@", &server, "?db=3"))).await;
    let _other = held(here.lock("key")).await;
    had(&third, "key").await;
}

#[tokio::test]
async fn who_is_not_there_is_named() {
    let mut server = RedisServer::start().await;
    let (url, path) = (url("", &server, ""), server.socket().display().to_string());
    let refused = async |url: &str| connecting(url, SOON).await.expect_err("nobody is there");
    server.kill();
    says(&refused(&url).await, &[&path, "refused"]);
    std::fs::remove_file(&path).expect("the socket of a server that was killed");
    says(&refused(&url).await, &[&path, "No such file"]);
    server.restart().await;
    had(&connect(config(&url)).await, "key").await;
}
