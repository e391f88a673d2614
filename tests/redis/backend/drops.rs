//! A caller that is gone, with its runtime: what it has sent is given back.

use std::time::{Duration, Instant};

use dlock::backend::redis::Redis;
use dlock::backend::{Backend, BackendErrorKind, Released, Request};

use super::{lock_name, release, server, started, take, until, write};
use crate::support::polls::{Polled, drive_until, leave_at_poll};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::runtimes::{current_thread, one_worker};
use crate::support::wait::{HANG, eventually};

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

/// By a backend that may take a slow machine for an outage.
async fn take_and_release(redis: &Redis, key: &str) {
    let known = eventually("it has the lock", async || {
        let request = write(key);
        let taken = redis.try_acquire(&request).await;
        taken.ok().flatten().map(|_| request)
    })
    .await;
    patiently_release(redis, &known).await;
}

/// Gives back what is held; an answer that is late is asked for again.
async fn patiently_release(redis: &Redis, request: &Request) {
    let mut answers = 0;
    let released = eventually("it is given back", async || {
        answers += 1;
        redis.release(request).await.ok()
    })
    .await;
    assert!(released == Released::Released || answers > 1);
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
        let request = write("a");
        let mut call = Box::pin(redis.try_acquire(&request));
        // Else what gives it back might come first, and be held back instead.
        let held_back = until("it to be held back", || async { proxy.holds_back() });
        drive_until(&mut call, held_back).await;
        drop(call);
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
        manager.block_on(eventually("it starts in its short time", async || {
            let starting = manager.spawn(async move { redis.start().await });
            starting.await.expect("no panic").ok()
        }));
        for (polls, ends) in (1..4).flat_map(|polls| [(polls, true), (polls, false)]) {
            let callers = current_thread();
            let request = write("a");
            let began = Instant::now();
            let mut call = Box::pin(async { redis.try_acquire(&request).await });
            let polled = callers.block_on(async {
                take_and_release(redis, "known").await;
                leave_at_poll(&mut call, polls, HANG).await
            });
            // Its commands go out, or not, and no answer is read.
            let kept = (!ends).then_some(callers);
            drop(call);
            match (polled, &kept) {
                (Polled::Done(Ok(Some(_))), Some(callers)) => {
                    callers.block_on(patiently_release(redis, &request));
                }
                (Polled::Done(Ok(Some(_))), None) => {
                    manager.block_on(patiently_release(redis, &request));
                }
                (Polled::Done(Ok(None)), _) => panic!("nobody else has it"),
                (Polled::Done(Err(late)), _) => {
                    assert_eq!(late.kind(), BackendErrorKind::Unavailable, "{late}");
                    assert!(began.elapsed() >= patience, "{late}");
                    manager.block_on(nothing_left(&server, "a"));
                }
                _ => manager.block_on(nothing_left(&server, "a")),
            }
        }
        manager.block_on(redis.stop());
    }
}
