//! A user with no more rights than the documentation gives it.

use crate::lock_name;
use crate::support::documented::{acl_commands, all_that_locks_need};
use crate::support::locks::{config, connect};
use crate::support::redis::RedisServer;
use crate::support::wait::until;

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
