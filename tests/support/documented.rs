//! Users with no more rights than a page of the documentation gives them.

use std::time::Duration;

use dlock::LockManager;
use tokio::time::sleep;

use super::calm::unless_it_stands_still;
use super::locks::{held, is_done, queued, served, wants};

/// The `ACL SETUSER` commands of a page, word by word.
pub(crate) fn acl_commands(page: &'static str) -> Vec<Vec<&'static str>> {
    let commands = page.split("\nACL SETUSER").skip(1).map(|from| {
        let (command, _) = from.split_once("```").expect("its end");
        ["ACL", "SETUSER"]
            .into_iter()
            .chain(command.split_whitespace())
            .collect()
    });
    commands.collect()
}

/// Does with two managers what needs every right that locks need.
pub(crate) async fn all_that_locks_need(here: &LockManager, there: &LockManager) {
    let modes = if here.capabilities().read_write { 2 } else { 1 };
    for read in [false, true].into_iter().take(modes) {
        let guard = held(here.lock("key")).await;
        let waiting = tokio::spawn(wants(there.lock("key"), read).acquire());
        queued(here, "key", 1).await;
        assert_eq!(here.list("k").await.expect("list").len(), 1);
        guard.release().await.expect("the release");
        served(waiting).await.release().await.expect("the release");
    }
    if here.capabilities().permits {
        let permits = |manager: &LockManager| manager.lock("key").permits(2);
        let first = held(permits(here)).await;
        let second = held(permits(there)).await;
        let waiting = tokio::spawn(permits(there).acquire());
        queued(here, "key", 1).await;
        first.release().await.expect("the release");
        for guard in [second, served(waiting).await] {
            guard.release().await.expect("the release");
        }
    }
    if here.capabilities().once {
        let done = held(here.lock("key").once(Duration::from_secs(3600))).await;
        let waiting = tokio::spawn(there.lock("key").acquire());
        queued(here, "key", 1).await;
        done.release_done().await.expect("the release");
        is_done(waiting.await.expect("no panic"));
        assert_eq!(there.list("k").await.expect("list").len(), 1);
        assert!(there.forget("key").await.expect("forget"));
    }
    let ttl = Duration::from_secs(3);
    unless_it_stands_still(ttl / 4, async || {
        let guard = held(here.lock("key").ttl(ttl)).await;
        sleep(2 * ttl).await;
        assert!(guard.is_held(), "it is renewed");
        guard.release().await.expect("the release");
    })
    .await;
}
