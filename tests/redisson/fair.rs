//! `recipe=fair` beside waiters who are not dlock's: what they have put into the queue, as
//! Redisson does, and what they are told.

use std::time::Duration;

use dlock::LockError;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::heard::{JAVA, heard_on, told};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{config, connect, free, had, held, is_busy, queued, says};
use crate::support::locks::{served, shown};
use crate::support::redis::RedisServer;
use crate::support::wait::until;

const QUEUE: &str = "redisson_lock_queue:{key}";
const TIMEOUTS: &str = "redisson_lock_timeout:{key}";

/// How long a place lasts, where nobody waits for its end.
const LONG: Duration = Duration::from_secs(3600);

async fn fair(server: &RedisServer, wait: Duration) -> dlock::LockManager {
    let wait = wait.as_secs();
    let url = format!("{}&fair_wait={wait}s", crate::url(&server.url(), "fair"));
    connect(config(&url)).await
}

/// By the clock of the server.
async fn now(server: &RedisServer) -> u64 {
    let (seconds, micros): (u64, u64) = server.command(&["TIME"]).await;
    seconds * 1000 + micros / 1000
}

async fn places(server: &RedisServer) -> Vec<String> {
    server.command(&["LRANGE", QUEUE, "0", "-1"]).await
}

/// When a place ends.
async fn ends(server: &RedisServer, owner: &str) -> Option<u64> {
    let ends: Option<f64> = server.command(&["ZSCORE", TIMEOUTS, owner]).await;
    ends.map(|ends| ends as u64)
}

/// A thread in Java that waits, for so long from now.
async fn java_waits(server: &RedisServer, lasts: Duration) {
    let ends = now(server).await + lasts.as_millis() as u64;
    let ends = ends.to_string();
    server.command::<()>(&["ZADD", TIMEOUTS, &ends, JAVA]).await;
    server.command::<()>(&["RPUSH", QUEUE, JAVA]).await;
}

/// It has the only place from now on. In one step: who has lost one takes it again at any time.
async fn java_alone_waits(server: &RedisServer, lasts: Duration) {
    let ends = now(server).await + lasts.as_millis() as u64;
    let mut step = redis::pipe();
    step.atomic().del(QUEUE).del(TIMEOUTS);
    step.cmd("ZADD").arg(TIMEOUTS).arg(ends).arg(JAVA);
    step.cmd("RPUSH").arg(QUEUE).arg(JAVA);
    let mut connection = server.connection().await;
    let done: redis::Value = step
        .query_async(&mut connection)
        .await
        .expect("our own server");
    drop(done);
}

async fn java_leaves(server: &RedisServer) {
    server.command::<()>(&["ZREM", TIMEOUTS, JAVA]).await;
    server.command::<()>(&["LREM", QUEUE, "0", JAVA]).await;
}

/// Hears what this one is told.
async fn listens(server: &RedisServer, owner: &str) -> UnboundedReceiver<String> {
    heard_on(server, &format!("redisson_lock__channel:{{key}}:{owner}")).await
}

/// Who comes first is told and nobody else, and nobody overtakes it.
#[tokio::test]
async fn a_waiter_of_theirs_is_told_and_not_overtaken() {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, LONG).await, fair(&server, LONG).await);
    let guard = held(holder.lock("key")).await;
    java_waits(&server, LONG).await;
    let mut java = listens(&server, JAVA).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 2).await;
    let ours = places(&server).await.remove(1);
    assert!(ours.contains("-00646c6f636b:"), "{ours}");
    let mut all = listens(&server, &ours).await;
    guard.release().await.expect("the release");
    told(&mut java).await;
    // It is there for Java alone to take.
    is_busy(holder.lock("key").try_acquire().await);
    free(&holder, "key").await;
    assert!(!waiting.is_finished());
    // As by the script of a release in Java, which has nothing to release.
    java_leaves(&server).await;
    let channel = format!("redisson_lock__channel:{{key}}:{ours}");
    server.command::<()>(&["PUBLISH", &channel, "0"]).await;
    told(&mut all).await;
    served(waiting).await.release().await.expect("the release");
    assert!(server.keys().await.is_empty(), "{:?}", server.keys().await);
}

/// What stands in the server is what Redisson would have written.
#[tokio::test]
async fn places_last_as_long_as_in_java() {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, LONG).await, fair(&server, LONG).await);
    let before = now(&server).await;
    let guard = held(holder.lock("key").ttl(LONG)).await;
    let first = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 1).await;
    let ours = places(&server).await.remove(0);
    // The lease, and then its own time.
    let long = LONG.as_millis() as u64;
    let first_ends = ends(&server, &ours).await.expect("a place");
    assert!((before + 2 * long..=now(&server).await + 2 * long).contains(&first_ends));
    java_waits(&server, 4 * LONG).await;
    let java_ends = ends(&server, JAVA).await.expect("a place");
    // Behind the last as much again.
    let third = fair(&server, LONG).await;
    let last = tokio::spawn(third.lock("key").acquire());
    queued(&holder, "key", 3).await;
    let third = places(&server).await.remove(2);
    assert_eq!(ends(&server, &third).await, Some(java_ends + long));
    // When one takes the lock, those behind it have waited as long less.
    guard.release().await.expect("the release");
    let guard = served(first).await;
    assert_eq!(places(&server).await, [JAVA, &third]);
    assert_eq!(ends(&server, &ours).await, None);
    assert_eq!(ends(&server, JAVA).await, Some(java_ends - long));
    assert_eq!(ends(&server, &third).await, Some(java_ends));
    last.abort();
    queued(&holder, "key", 1).await;
    guard.release().await.expect("the release");
}

/// So that those behind it do not wait for it.
#[tokio::test]
async fn who_gives_up_leaves_the_queue() {
    let patience = Duration::from_secs(2);
    unless_it_stands_still(patience / 4, async || gives_up(patience).await).await;
}

async fn gives_up(patience: Duration) {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, LONG).await, fair(&server, LONG).await);
    let guard = held(holder.lock("key")).await;
    for dropped in [false, true] {
        let giving_up = match dropped {
            true => tokio::spawn(other.lock("key").acquire()),
            false => tokio::spawn(other.lock("key").acquire_within(patience)),
        };
        queued(&holder, "key", 1).await;
        java_waits(&server, 3 * LONG).await;
        let before = ends(&server, JAVA).await.expect("a place");
        match dropped {
            true => giving_up.abort(),
            false => {
                let error = giving_up
                    .await
                    .expect("no panic")
                    .expect_err("Java is first");
                assert!(matches!(error, LockError::Timeout { .. }), "{error}");
            }
        }
        queued(&holder, "key", 1).await;
        assert_eq!(places(&server).await, [JAVA]);
        let long = LONG.as_millis() as u64;
        assert_eq!(ends(&server, JAVA).await, Some(before - long));
        java_leaves(&server).await;
    }
    guard.release().await.expect("the release");
}

/// The message to one that left in that moment is told to the next.
#[tokio::test]
async fn who_leaves_a_free_lock_tells_the_next() {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, LONG).await, fair(&server, LONG).await);
    let guard = held(holder.lock("key")).await;
    let leaving = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 1).await;
    java_waits(&server, 3 * LONG).await;
    let mut java = listens(&server, JAVA).await;
    // Nobody tells of it.
    let deleted: u32 = server.command(&["DEL", "key"]).await;
    assert_eq!(deleted, 1);
    leaving.abort();
    told(&mut java).await;
    java_leaves(&server).await;
    drop(guard);
}

/// Whatever has become of a waiter in Java, or of one of dlock's that was killed.
#[tokio::test]
async fn a_dead_waiter_keeps_its_place_until_its_time_is_over() {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, LONG).await, fair(&server, LONG).await);
    let guard = held(holder.lock("key")).await;
    java_waits(&server, Duration::from_secs(5)).await;
    let over = ends(&server, JAVA).await.expect("a place");
    let waiting = tokio::spawn(other.lock("key").acquire());
    // The place may be over by then.
    let all = async || places(&server).await;
    let is_ours = |place: &String| place != JAVA;
    until("ours has a place", all, |all| all.iter().any(is_ours)).await;
    guard.release().await.expect("the release");
    let guard = served(waiting).await;
    assert!(now(&server).await >= over, "it was overtaken");
    assert_eq!(shown(&holder, "key").await.waiters, Some(0));
    guard.release().await.expect("the release");
    assert!(server.keys().await.is_empty(), "{:?}", server.keys().await);
}

/// By another's clock, its time was over. It hears nothing of that, nor of a release.
#[tokio::test]
async fn a_place_that_was_taken_away_is_taken_again() {
    let server = RedisServer::start().await;
    let wait = Duration::from_secs(3);
    let (holder, other) = (fair(&server, wait).await, fair(&server, wait).await);
    let guard = held(holder.lock("key")).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 1).await;
    for _ in 0..2 {
        java_alone_waits(&server, LONG).await;
        queued(&holder, "key", 2).await;
        assert_eq!(places(&server).await[0], JAVA);
        java_leaves(&server).await;
    }
    server.command::<()>(&["DEL", QUEUE, TIMEOUTS]).await;
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");
}

/// In Java, a place ends while a lock is held for long. Who uses dlock keeps it as long as
/// it lives, if nobody from Java is behind it.
#[tokio::test]
async fn who_waits_for_long_is_not_overtaken() {
    let wait = Duration::from_secs(3);
    unless_it_stands_still(wait / 12, async || is_not_overtaken(wait).await).await;
}

async fn is_not_overtaken(wait: Duration) {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, wait).await, fair(&server, wait).await);
    let guard = held(holder.lock("key").ttl(wait)).await;
    let first = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 1).await;
    let ours = places(&server).await.remove(0);
    let begun = ends(&server, &ours).await.expect("a place");
    // Its time would be over.
    let is_later = async || now(&server).await > begun;
    until("time passes", is_later, |later| *later).await;
    is_busy(holder.lock("key").try_acquire().await);
    let late = fair(&server, wait).await;
    let second = tokio::spawn(late.lock("key").acquire());
    queued(&holder, "key", 2).await;
    assert_eq!(places(&server).await[0], ours);
    // In older versions of Java, one who waits behind it counts on its end.
    java_waits(&server, LONG).await;
    let kept = async || ends(&server, &ours).await.expect("a place");
    let begun = kept().await;
    let is_later = async || now(&server).await > begun - 1_000;
    until("time passes", is_later, |later| *later).await;
    assert_eq!(kept().await, begun);
    java_leaves(&server).await;
    until("it is kept again", kept, |ends| *ends > begun).await;
    guard.release().await.expect("the release");
    let guard = served(first).await;
    assert!(!second.is_finished());
    guard.release().await.expect("the release");
    served(second).await.release().await.expect("the release");
}

/// A free lock is not slept on, whoever was to be told.
#[tokio::test]
async fn a_message_that_was_lost_is_made_up_for() {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, LONG).await, fair(&server, LONG).await);
    let guard = held(holder.lock("key")).await;
    java_waits(&server, LONG).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 2).await;
    let mut java = listens(&server, JAVA).await;
    let deleted: u32 = server.command(&["DEL", "key"]).await;
    assert_eq!(deleted, 1);
    // By one who waits behind it.
    told(&mut java).await;
    java_leaves(&server).await;
    // And by nobody.
    served(waiting).await.release().await.expect("the release");
    drop(guard);
}

/// On either side, and without those whose time is over.
#[tokio::test]
async fn who_waits_is_shown_in_order() {
    let server = RedisServer::start().await;
    let holder = fair(&server, LONG).await;
    let guard = held(holder.lock("key")).await;
    let (second, third) = (fair(&server, LONG).await, fair(&server, LONG).await);
    java_waits(&server, LONG).await;
    let mut waiting = Vec::new();
    for (number, manager) in [(2, &second), (3, &third)] {
        waiting.push(tokio::spawn(manager.lock("key").acquire()));
        queued(&holder, "key", number).await;
    }
    let all = places(&server).await;
    let dead = "8743c9c0-0795-4907-87fd-6c719a6b4586:99";
    server.command::<()>(&["ZADD", TIMEOUTS, "1", dead]).await;
    let before = ["LINSERT", QUEUE, "BEFORE", &all[2], dead];
    server.command::<()>(&before).await;
    let lock = shown(&holder, "key").await;
    assert_eq!(lock.waiters, Some(3));
    let queue: Vec<_> = lock.queue.iter().map(|waiter| &*waiter.owner).collect();
    assert_eq!(queue, all);
    assert!(
        lock.queue
            .iter()
            .all(|waiter| waiter.mode == dlock::backend::Mode::Write)
    );
    java_leaves(&server).await;
    guard.release().await.expect("the release");
    for next in waiting {
        served(next).await.release().await.expect("the release");
    }
}

/// Neither queues nor times are locks.
#[tokio::test]
async fn a_list_shows_locks_alone() {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, LONG).await, fair(&server, LONG).await);
    let guard = held(holder.lock("key")).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    queued(&holder, "key", 1).await;
    let locks = holder.list("").await.expect("a list");
    let keys: Vec<_> = locks
        .iter()
        .map(|lock| (&*lock.key, lock.waiters))
        .collect();
    assert_eq!(keys, [("key", Some(1))]);
    guard.release().await.expect("the release");
    served(waiting).await.release().await.expect("the release");
    had(&holder, "key").await;
    assert!(server.keys().await.is_empty(), "{:?}", server.keys().await);
}

/// What stands where a queue belongs is told, and stays as it was.
#[tokio::test]
async fn what_is_no_queue_is_told() {
    let server = RedisServer::start().await;
    let (holder, other) = (fair(&server, LONG).await, fair(&server, LONG).await);
    for name in [QUEUE, TIMEOUTS] {
        let guard = held(holder.lock("key")).await;
        server.command::<()>(&["SET", name, "value"]).await;
        let error = other.lock("key").acquire().await.expect_err("no queue");
        says(&error, &[name, "not write"]);
        let left: String = server.command(&["GET", name]).await;
        assert_eq!(left, "value");
        server.command::<()>(&["DEL", name]).await;
        guard.release().await.expect("the release");
    }
}
