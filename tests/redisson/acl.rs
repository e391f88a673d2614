//! A user with no more rights than the documentation gives it.

use crate::support::documented::acl_commands;
use crate::support::locks::{config, connect, free, held, is_busy, queued, served, shown, wants};
use crate::support::redis::RedisServer;
use crate::url;

#[tokio::test]
async fn the_documented_user_can_do_all_that_locks_need() {
    let server = RedisServer::start().await;
    for command in acl_commands(include_str!("../../docs/stores/redisson.md")) {
        server.command::<()>(&command).await;
    }
    let user = format!("redis://dlock:password@127.0.0.1:{}", server.port());
    for (recipe, modes) in [
        ("lock", &[false][..]),
        ("fenced", &[false]),
        ("fair", &[false]),
        ("read-write", &[false, true]),
    ] {
        let connect = async || connect(config(&url(&user, recipe))).await;
        let (here, there) = (connect().await, connect().await);
        for &read in modes {
            let guard = held(wants(here.lock("stock:1"), read)).await;
            is_busy(there.lock("stock:1").try_acquire().await);
            let waiting = tokio::spawn(there.lock("stock:1").acquire());
            queued(&here, "stock:1", 1).await;
            assert_eq!(shown(&there, "stock:1").await.holders.len(), 1);
            assert_eq!(there.list("stock:").await.expect("a list").len(), 1);
            guard.release().await.expect("the release");
            served(waiting).await.release().await.expect("the release");
            free(&here, "stock:1").await;
        }
    }
    let refused: Vec<redis::Value> = server.command(&["ACL", "LOG"]).await;
    assert!(refused.is_empty(), "{refused:?}");
}

/// What is missing is told in the words of this layout.
#[tokio::test]
async fn a_user_that_may_not_is_told_what_it_needs() {
    let server = RedisServer::start().await;
    let rights = "ACL SETUSER dlock on >password resetchannels &redisson_* ~stock:* +@all -hset";
    let words: Vec<_> = rights.split(' ').collect();
    server.command::<()>(&words).await;
    let user = format!("redis://dlock:password@127.0.0.1:{}", server.port());
    let manager = connect(config(&url(&user, "lock"))).await;
    let error = manager.lock("stock:1").try_acquire().await;
    let error = error.expect_err("not allowed").to_string();
    assert!(error.contains("+hexists"), "{error}");
}
