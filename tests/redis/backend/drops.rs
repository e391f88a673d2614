//! A future that is dropped, at whatever await, leaves nothing behind.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use dlock::backend::redis::Redis;
use dlock::backend::{Backend, Request};

use super::{
    lock_value, queue_of, queued, read, release, runtime, server, started, take, through, until,
    wait, write,
};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::wait::{HANG, within};

/// More polls than any operation takes that does not wait.
const MOST_POLLS: usize = 12;

/// Polls a future so often, whenever it is woken, and drops it. Says whether it
/// was done before that.
async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|context| {
        if polls == times {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == times => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Until neither the lock nor a place in its queue is left.
async fn nothing_left(server: &RedisServer, key: &str) {
    let keys = ["", ":queue", ":readers"].map(|part| format!("dlock:{{{key}}}{part}"));
    until("nothing to be left", || async {
        server.run::<u64>(&["EXISTS", &keys[0], &keys[1], &keys[2]]) == 0
    })
    .await;
}

fn requests(key: &str) -> [Request; 2] {
    [write(key), read(key)]
}

#[tokio::test]
async fn a_dropped_attempt_on_a_free_lock_leaves_nothing() {
    let server = RedisServer::start().await;
    let redis = started(&server.url()).await;
    for times in 0..MOST_POLLS {
        for waits in [false, true] {
            for request in requests("a") {
                let granted = if waits {
                    poll_times(redis.acquire(&request), times)
                        .await
                        .map(|grant| grant.is_ok())
                } else {
                    poll_times(redis.try_acquire(&request), times)
                        .await
                        .map(|grant| grant.is_ok_and(|grant| grant.is_some()))
                };
                match granted {
                    Some(granted) => {
                        assert!(granted, "after {times} polls");
                        release(&redis, &request).await;
                    }
                    None => nothing_left(&server, "a").await,
                }
            }
        }
    }
    assert!(redis.try_acquire(&write("a")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_dropped_attempt_on_a_held_lock_leaves_nothing() {
    let server = RedisServer::start().await;
    let redis = started(&server.url()).await;
    let holder = write("a");
    take(&redis, &holder).await;
    for times in 0..MOST_POLLS {
        for request in requests("a") {
            if let Some(tried) = poll_times(redis.try_acquire(&request), times).await {
                assert!(tried.unwrap().is_none());
            }
        }
        for request in requests("a") {
            // A waiter is not woken again, so some are dropped in the queue.
            tokio::select! {
                granted = poll_times(redis.acquire(&request), times) => {
                    assert!(granted.is_none(), "{granted:?}");
                }
                () = queued(&server, "a", 1) => {}
            }
            until("an empty queue", || async {
                queue_of(&server, "a").is_empty()
            })
            .await;
        }
    }
    assert!(lock_value(&server, "a").starts_with(&format!("w:{}", holder.owner)));
    release(&redis, &holder).await;
    nothing_left(&server, "a").await;
}

/// The grant crosses with the drop.
#[tokio::test]
async fn a_dropped_waiter_gives_back_what_it_is_granted() {
    let server = RedisServer::start().await;
    let redis = Arc::new(started(&server.url()).await);
    for times in 1..MOST_POLLS {
        for request in requests("a") {
            let holder = write("a");
            take(&redis, &holder).await;
            let next = write("a");
            let mut waiter = Box::pin(redis.acquire(&request));
            tokio::select! {
                granted = &mut waiter => panic!("{granted:?} while it was held"),
                () = queued(&server, "a", 1) => {}
            }
            let next_waiter = wait(&redis, &next);
            queued(&server, "a", 2).await;
            let (granted, ()) =
                tokio::join!(poll_times(&mut waiter, times), release(&redis, &holder));
            drop(waiter);
            if let Some(granted) = granted {
                granted.unwrap();
                release(&redis, &request).await;
            }
            within(HANG, next_waiter).await.unwrap();
            release(&redis, &next).await;
            nothing_left(&server, "a").await;
        }
    }
}

/// Outside of any runtime, and after its own has ended.
#[test]
fn a_future_can_be_dropped_anywhere() {
    let server = server();
    let manager = runtime();
    let url = server.url();
    let redis: &'static Redis = Box::leak(Box::new(manager.block_on(async move {
        tokio::spawn(async move { started(&url).await })
            .await
            .unwrap()
    })));
    let holder: &'static Request = Box::leak(Box::new(write("a")));
    manager.block_on(take(redis, holder));
    let mut left_over = Vec::new();
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let request: &'static Request = Box::leak(Box::new(write("a")));
        let mut waiter = Box::pin(redis.acquire(request));
        runtime.block_on(async {
            tokio::select! {
                granted = &mut waiter => panic!("{granted:?} while it was held"),
                () = queued(&server, "a", left_over.len() + 1) => {}
            }
        });
        left_over.push(waiter);
        // The second one's runtime is still there when it is dropped.
        if left_over.len() == 1 {
            drop(runtime);
        } else {
            std::mem::forget(runtime);
        }
    }
    drop(left_over);
    manager.block_on(async {
        until("an empty queue", || async {
            queue_of(&server, "a").is_empty()
        })
        .await;
        release(redis, holder).await;
        nothing_left(&server, "a").await;
        redis.stop().await;
    });
}

/// Dropped while the server is slow, or its answers get lost.
#[tokio::test]
async fn what_is_under_way_when_it_is_dropped_is_given_back() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let redis = started(&through(&proxy)).await;
    let faults: [fn(&Proxy, bool); 3] =
        [Proxy::stall, Proxy::stall_replies, Proxy::swallow_replies];
    for fault in faults {
        for request in requests("a") {
            fault(&proxy, true);
            let dropped =
                tokio::time::timeout(Duration::from_millis(50), redis.try_acquire(&request)).await;
            assert!(dropped.is_err(), "{dropped:?}");
            fault(&proxy, false);
            nothing_left(&server, "a").await;
            let other = write("a");
            within(HANG, redis.acquire(&other)).await.unwrap();
            release(&redis, &other).await;
        }
    }
}

/// The caller's connection is not the backend's. What was under way over the
/// one may be run later than what is sent over the other.
#[test]
fn what_was_under_way_is_given_back_behind_it() {
    let server = server();
    let proxy = Proxy::to(server.port());
    let (manager, callers) = (runtime(), runtime());
    let url = through(&proxy);
    let redis = manager
        .block_on(manager.spawn(async move { started(&url).await }))
        .unwrap();
    callers.block_on(async {
        let known = write("known");
        take(&redis, &known).await;
        release(&redis, &known).await;
        proxy.hold_back(Some("dlock:{a}"));
        let request = write("a");
        let dropped =
            tokio::time::timeout(Duration::from_millis(50), redis.try_acquire(&request)).await;
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
    let runtime = |threads: usize| {
        match threads {
            0 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        }
        .enable_all()
        .build()
        .expect("a runtime")
    };
    let manager = runtime(1);
    for patience in [Duration::from_millis(100), Duration::from_secs(5)] {
        let settings = Redis::from_url(&server.url())
            .expect("a valid URL")
            .request_timeout(patience);
        let redis: &'static Redis = Box::leak(Box::new(settings));
        manager
            .block_on(manager.spawn(async { redis.start().await }))
            .unwrap()
            .expect("the backend starts");
        for times in 1..4 {
            for ends in [true, false] {
                let callers = runtime(0);
                let known = write("known");
                callers.block_on(async {
                    take(redis, &known).await;
                    release(redis, &known).await;
                });
                let request: &'static Request = Box::leak(Box::new(write("a")));
                let mut call = Box::pin(redis.try_acquire(request));
                // The connection gets its turn behind each poll.
                let granted = callers.block_on(async {
                    let mut granted = None;
                    for _ in 0..times {
                        granted = poll_times(&mut call, 1).await;
                        if granted.is_some() {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    granted
                });
                if granted.is_some() {
                    callers.block_on(release(redis, request));
                    continue;
                }
                // Its commands go out, or not, and no answer is read.
                let kept = (!ends).then_some(callers);
                drop(call);
                manager.block_on(nothing_left(&server, "a"));
                drop(kept);
            }
        }
        manager.block_on(redis.stop());
    }
}
