//! A user with no more rights than the documentation gives it.

use dlock::{Config, LockManager};

use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, until, within};

/// The command in the documentation, word by word.
fn documented() -> Vec<&'static str> {
    let page = include_str!("../../docs/stores/redis.md");
    let (_, from) = page.split_once("ACL SETUSER").expect("the command");
    let (command, _) = from.split_once("```").expect("its end");
    ["ACL", "SETUSER"]
        .into_iter()
        .chain(command.split_whitespace())
        .collect()
}

#[tokio::test]
async fn the_documented_user_can_do_all_that_locks_need() {
    let server = RedisServer::start().await;
    server.command::<()>(&documented()).await;
    let url = format!("redis://dlock:password@127.0.0.1:{}", server.port());
    let connect = async || {
        let config = Config::from_url(&url).expect("a valid URL");
        within(HANG, LockManager::connect(config))
            .await
            .expect("a connection")
    };
    let (here, there) = (connect().await, connect().await);
    for read in [false, true] {
        let held = here.lock("key").acquire().await.expect("the lock");
        let waiting = tokio::spawn({
            let request = there.lock("key");
            let request = if read { request.read() } else { request };
            async move { request.acquire().await }
        });
        until(
            "it waits",
            async || here.inspect("key").await.expect("inspect"),
            |lock| lock.as_ref().is_some_and(|lock| lock.waiters == 1),
        )
        .await;
        assert_eq!(here.list("k").await.expect("list").len(), 1);
        held.release().await.expect("the release");
        let held = within(HANG, waiting).await.expect("no panic");
        held.expect("the lock")
            .release()
            .await
            .expect("the release");
    }
}
