//! Waiting: in order, across backends and processes, and for what is freed
//! without a word.

use std::future::Future;
use std::sync::Arc;

use dlock::backend::{Backend, Grant, Released};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::{LONG, is_granted, lock_value, queued, read, release};
use super::{scene, server, started, take, until, wait, waits, write};
use crate::support::runtimes::one_worker;
use crate::support::wait::{HANG, within};

/// As if the message had been lost: the lock is given to the waiter without one.
#[tokio::test]
async fn a_grant_without_a_message_is_found() {
    let (server, redis) = scene().await;
    take(&redis, &write("a")).await;
    let request = write("a");
    let waiter = waits(&server, &redis, &request, 1).await;
    server.run::<String>(&["LPOP", "dlock:{a}:queue"]);
    // For longer than the test: nothing else would wake the waiter.
    let value = format!("w:{}+", request.owner);
    server.run::<()>(&["SET", "dlock:{a}", &value, "PX", "600000"]);
    within(HANG, waiter).await.unwrap();
    assert!(server.run::<u64>(&["PTTL", "dlock:{a}"]) <= LONG.as_millis() as u64);
    release(&redis, &request).await;
}

/// The message that lets a reader in is lost, and readers hold the lock on.
#[tokio::test]
async fn a_reader_let_in_without_a_message_finds_out() {
    let (server, redis) = scene().await;
    take(&redis, &write("a")).await;
    let request = read("a");
    let waiter = waits(&server, &redis, &request, 1).await;
    server.run::<String>(&["LPOP", "dlock:{a}:queue"]);
    let (end, owner) = ("99999999999999", request.owner.to_string());
    server.run::<u64>(&["ZADD", "dlock:{a}:readers", end, &owner, end, "1.1"]);
    server.run::<()>(&["SET", "dlock:{a}", "r:1.1"]);
    within(HANG, waiter).await.unwrap();
}

/// The queue is gone, and then everything.
#[tokio::test]
async fn waiters_outlive_their_queue() {
    let (server, redis) = scene().await;
    let requests: [_; 4] = std::array::from_fn(|_| write("a"));
    take(&redis, &requests[0]).await;
    let first = waits(&server, &redis, &requests[1], 1).await;
    server.run::<u64>(&["DEL", "dlock:{a}:queue"]);
    release(&redis, &requests[0]).await;
    within(HANG, first).await.unwrap();

    let waiters = [wait(&redis, &requests[2]), wait(&redis, &requests[3])];
    queued(&server, "a", 2).await;
    server.run::<()>(&["FLUSHALL"]);
    assert_eq!(
        redis.release(&requests[1]).await.unwrap(),
        Released::NotHeld
    );
    // Their order is lost, so each gives back as soon as it has the lock.
    let served = async |waiter: JoinHandle<Grant>, request| {
        within(HANG, waiter).await.unwrap();
        release(&redis, request).await;
    };
    let [first, second] = waiters;
    tokio::join!(served(first, &requests[2]), served(second, &requests[3]));
}

/// A newcomer who took the lock while it was free for a moment, and so does not
/// know of the queue, is told of it.
#[tokio::test]
async fn a_holder_who_overtook_the_queue_hands_on_to_it() {
    let (server, redis) = scene().await;
    take(&redis, &write("a")).await;
    let request = write("a");
    let waiter = waits(&server, &redis, &request, 1).await;
    server.run::<u64>(&["DEL", "dlock:{a}"]);
    let newcomer = write("a");
    take(&redis, &newcomer).await;
    until("the mark of a waiter", || async {
        lock_value(&server, "a").ends_with('+')
    })
    .await;
    release(&redis, &newcomer).await;
    is_granted(&server, &request);
    within(HANG, waiter).await.unwrap();
}

/// Time is paused, so every timer of this runtime goes off at once; none of
/// them may end an operation, nor a wait.
#[test]
fn paused_time_neither_ends_nor_spoils_a_wait() {
    let server = server();
    let (manager, url) = (one_worker(), server.url());
    let starting = manager.spawn(async move { started(&url).await });
    let redis = Arc::new(manager.block_on(starting).unwrap());
    let mut paused = tokio::runtime::Builder::new_current_thread();
    let paused = paused.enable_all().start_paused(true).build().unwrap();
    let (holder, request) = (write("a"), write("a"));
    bounded(&paused, &manager, take(&redis, &holder));
    let waiter = {
        let _entered = paused.enter();
        wait(&redis, &request)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            manager.block_on(async {
                queued(&server, "a", 1).await;
                release(&redis, &holder).await;
            });
        });
        bounded(&paused, &manager, waiter).unwrap();
    });
    bounded(&paused, &manager, release(&redis, &request));
}

/// Runs this where time is paused, for no longer than a test may take by the clock of
/// another runtime: a timer of its own would go off at once.
fn bounded<T>(paused: &Runtime, clock: &Runtime, work: impl Future<Output = T>) -> T {
    let limit = clock.spawn(async { tokio::time::sleep(HANG).await });
    paused.block_on(async {
        tokio::select! {
            biased;
            done = work => done,
            _ = limit => panic!("it hangs"),
        }
    })
}
