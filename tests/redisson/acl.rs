//! A user with no more rights than the documentation gives it.

use crate::support::cluster::{Cluster, LONG, may_move};
use crate::support::documented::acl_commands;
use crate::support::locks::{config, connect, free, held, is_busy, queued, served, shown, wants};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};
use crate::url;

const RECIPES: [(&str, &[bool]); 4] = [
    ("lock", &[false]),
    ("fenced", &[false]),
    ("fair", &[false]),
    ("read-write", &[false, true]),
];

/// Gives it the documented rights.
async fn has_a_user(server: &RedisServer) {
    for command in acl_commands(include_str!("../../docs/stores/redisson.md")) {
        server.command::<()>(&command).await;
    }
}

/// It can do all that locks need.
async fn does_all(user: &str) {
    for (recipe, modes) in RECIPES {
        let connect = async || connect(config(&url(user, recipe))).await;
        let (here, there) = (connect().await, connect().await);
        for &read in modes {
            let guard = held(wants(here.lock("stock:1"), read)).await;
            is_busy(there.lock("stock:1").try_acquire().await);
            let waiting = tokio::spawn(there.lock("stock:1").acquire());
            queued(&here, "stock:1", 1).await;
            assert_eq!(shown(&there, "stock:1").await.holders.len(), 1);
            assert_eq!(there.list("stock:").await.expect("a list").len(), 1);
            guard.release().await.expect("the release");
            let next = served(waiting).await;
            let broken = within(HANG, here.break_lock("stock:1", None)).await;
            assert!(broken.expect("an answer").is_some());
            drop(next);
            free(&here, "stock:1").await;
        }
    }
}

async fn was_refused_nothing(server: &RedisServer) {
    let refused: Vec<redis::Value> = server.command(&["ACL", "LOG"]).await;
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test]
async fn the_documented_user_can_do_all_that_locks_need() {
    let server = RedisServer::start().await;
    has_a_user(&server).await;
    let user = format!("redis://dlock:password@127.0.0.1:{}", server.port());
    does_all(&user).await;
    was_refused_nothing(&server).await;
}

#[tokio::test]
async fn the_documented_user_can_do_all_that_locks_need_in_a_cluster() {
    let cluster = Cluster::start(LONG).await;
    for server in &cluster.servers {
        has_a_user(server).await;
    }
    let user = cluster.url("").replace("://", "://dlock:password@");
    does_all(&user).await;
    // Also where its slot goes.
    let [slot, from, to] = may_move(cluster.slot("stock:1").await);
    cluster.open_slot(slot, from, to).await;
    let manager = connect(config(&url(&user, "lock"))).await;
    let guard = held(manager.lock("stock:1")).await;
    cluster.move_slot(slot, from, to).await;
    guard.release().await.expect("the release");
    does_all(&user).await;
    for server in &cluster.servers {
        was_refused_nothing(server).await;
    }
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
