//! A user with no more rights than the documentation gives it.

use crate::lock_name;
use crate::support::documented::{acl_commands, all_that_locks_need};
use crate::support::locks::{config, connect, connecting, is_misconfigured};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, until};

#[tokio::test]
async fn the_documented_user_can_do_all_that_locks_need() {
    let server = RedisServer::start().await;
    for command in acl_commands(include_str!("../../docs/stores/redis.md")) {
        server.command::<()>(&command).await;
    }
    let url = format!("redis://dlock:password@127.0.0.1:{}", server.port());
    let connect = async || connect(config(&url)).await;
    let (here, there) = (connect().await, connect().await);
    all_that_locks_need(&here, &there).await;
    // A grant to nobody, which is undone.
    let words = ["PUBSUB", "CHANNELS", "dlock:wake:*"];
    let channels: Vec<String> = server.command(&words).await;
    let channel = channels.first().expect("somebody has waited");
    let process = channel.rsplit(':').next().expect("a process");
    let entry = format!("w:abc.1:30000:{process}");
    let queue = format!("{}:queue", lock_name("key"));
    server.command::<u32>(&["RPUSH", &queue, &entry]).await;
    let message = format!("{entry} {}", lock_name("key"));
    let words = ["PUBLISH", channel, &message];
    server.command::<u32>(&words).await;
    let left = async || server.command::<u32>(&["EXISTS", &queue]).await;
    until("it has gone", left, |&left| left == 0).await;
    assert!(server.calls("lrange") > 0);
    let refused: Vec<redis::Value> = server.command(&["ACL", "LOG"]).await;
    assert!(refused.is_empty(), "{refused:?}");
}

/// The message lists them, also for a database of one's own.
#[tokio::test]
async fn a_user_with_the_rights_of_the_message_can_do_all_that_locks_need() {
    let server = RedisServer::start().await;
    let rights = async |changes: &[&str]| {
        let words = [&["ACL", "SETUSER", "app"], changes].concat();
        server.command::<()>(&words).await;
    };
    rights(&["on", ">password", "+@all"]).await;
    let url = format!("redis://app:password@127.0.0.1:{}/1", server.port());
    let told = is_misconfigured(connecting(&url, HANG).await).to_string();
    let words = told.split([' ', '`', ',', ')']);
    let named: Vec<_> = words
        .filter(|word| word.starts_with(['+', '~', '&']))
        .collect();
    assert!(
        named.contains(&"~dlock:*") && named.contains(&"+evalsha"),
        "{told}"
    );
    rights(&["-@all"]).await;
    rights(&named).await;
    let connect = async || connect(config(&url)).await;
    all_that_locks_need(&connect().await, &connect().await).await;
}

/// A readiness check says what a call would: that this user may not look at locks.
#[tokio::test]
async fn who_may_not_look_is_not_ready() {
    let server = RedisServer::start().await;
    let rights = async |change: &str| {
        let words = ["ACL", "SETUSER", "app", change];
        server.command::<()>(&words).await;
    };
    for change in ["on", ">password", "~*", "&*", "+@all"] {
        rights(change).await;
    }
    let url = format!("redis://app:password@127.0.0.1:{}", server.port());
    let manager = connect(config(&url)).await;
    manager.ping().await.expect("it may");
    rights("resetkeys").await;
    let refused = manager.ping().await.expect_err("it may not");
    assert!(refused.is_denied(), "{refused:?}");
    assert!(!refused.to_string().contains("password"), "{refused}");
    // Another manager is of another store.
    let other = connect(config(&server.url())).await;
    other.ping().await.expect("it may");
}
