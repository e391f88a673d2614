//! A user with no more rights than the documentation gives it.

use dlock::{Config, LockManager};

use crate::support::documented::{acl_commands, all_that_locks_need};
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

#[tokio::test]
async fn the_documented_user_can_do_all_that_locks_need() {
    let server = RedisServer::start().await;
    for command in acl_commands(include_str!("../../docs/stores/redis.md")) {
        server.command::<()>(&command).await;
    }
    let url = format!("redis://dlock:password@127.0.0.1:{}", server.port());
    let connect = async || {
        let config = Config::from_url(&url).expect("a valid URL");
        within(HANG, LockManager::connect(config))
            .await
            .expect("a connection")
    };
    all_that_locks_need(&connect().await, &connect().await).await;
}
