//! A caller that is gone, with its runtime: what it has sent is given back.

use std::time::Duration;

use dlock::backend::Backend;
use dlock::backend::redis::Redis;

use super::{lock_name, release, server, started, take, until, write};
use crate::support::polls::{Polled, leave_at_poll};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::runtimes::{current_thread, one_worker};
use crate::support::wait::HANG;

/// Until neither the lock is left, nor a place in its queue or among its readers.
async fn nothing_left(server: &RedisServer, key: &str) {
    let parts = ["", ":queue", ":readers"];
    let [lock, queue, readers] = parts.map(|part| format!("{}{part}", lock_name(key)));
    let words = ["EXISTS", &lock, &queue, &readers];
    until("nothing to be left", || async {
        server.run::<u64>(&words) == 0
    })
    .await;
}

/// The caller's connection is not the backend's. What was under way over the
/// one may be run later than what is sent over the other.
#[test]
fn what_was_under_way_is_given_back_behind_it() {
    let server = server();
    let proxy = Proxy::to(server.port());
    let (manager, callers) = (one_worker(), one_worker());
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
        nothing_left(&server, "a").await;
    });
}

/// The caller's runtime is not running when its call is dropped, and may never
/// run again: what was under way over its connection cannot be asked for.
#[test]
fn a_runtime_that_stands_still_keeps_no_lock() {
    let server = server();
    let manager = one_worker();
    for patience in [Duration::from_millis(500), Duration::from_secs(5)] {
        let settings = Redis::from_url(&server.url()).expect("a valid URL");
        let redis: &'static Redis = Box::leak(Box::new(settings.request_timeout(patience)));
        let starting = manager.block_on(manager.spawn(async { redis.start().await }));
        starting.expect("no panic").expect("the backend starts");
        for (polls, ends) in (1..4).flat_map(|polls| [(polls, true), (polls, false)]) {
            let callers = current_thread();
            let request = write("a");
            let mut call = Box::pin(async { redis.try_acquire(&request).await });
            let polled = callers.block_on(async {
                let known = write("known");
                take(redis, &known).await;
                release(redis, &known).await;
                leave_at_poll(&mut call, polls, HANG).await
            });
            // Its commands go out, or not, and no answer is read.
            let kept = (!ends).then_some(callers);
            drop(call);
            match (polled, &kept) {
                (Polled::Done(_), Some(callers)) => callers.block_on(release(redis, &request)),
                (Polled::Done(_), None) => manager.block_on(release(redis, &request)),
                _ => manager.block_on(nothing_left(&server, "a")),
            }
        }
        manager.block_on(redis.stop());
    }
}
