//! Users with no more rights than a page of the documentation gives them.

use dlock::LockManager;

use super::locks::{held, queued, served, wants};

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
    for read in [false, true] {
        let guard = held(here.lock("key")).await;
        let waiting = tokio::spawn(wants(there.lock("key"), read).acquire());
        queued(here, "key", 1).await;
        assert_eq!(here.list("k").await.expect("list").len(), 1);
        guard.release().await.expect("the release");
        served(waiting).await.release().await.expect("the release");
    }
}
