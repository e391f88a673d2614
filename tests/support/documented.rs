//! Users with no more rights than a page of the documentation gives them.

use dlock::LockManager;

use super::wait::{HANG, until, within};

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
