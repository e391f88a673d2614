//! A caller that is gone: what it has sent is given back.

use std::time::Duration;

use dlock::backend::Backend;

use super::{release, runtime, server, started, take, until, write};
use crate::support::proxy::Proxy;

/// The caller's connection is not the backend's. What was under way over the
/// one may be run later than what is sent over the other.
#[test]
fn what_was_under_way_is_given_back_behind_it() {
    let server = server();
    let proxy = Proxy::to(server.port());
    let (manager, callers) = (runtime(), runtime());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let redis = manager.block_on(manager.spawn(async move { started(&url).await }));
    let redis = redis.expect("no panic");
    callers.block_on(async {
        let known = write("known");
        take(&redis, &known).await;
        release(&redis, &known).await;
        proxy.hold_back(Some("dlock:{a}"));
        let (request, moment) = (write("a"), Duration::from_millis(50));
        let dropped = tokio::time::timeout(moment, redis.try_acquire(&request)).await;
        assert!(dropped.is_err(), "{dropped:?}");
        until("it to be given back", || async { server.calls("lrem") > 0 }).await;
        let before = server.calls("set");
        proxy.hold_back(None);
        until("the late command", || async {
            server.calls("set") > before
        })
        .await;
        let left = ["EXISTS", "dlock:{a}", "dlock:{a}:queue"];
        until("nothing to be left", || async {
            server.run::<u64>(&left) == 0
        })
        .await;
    });
}
