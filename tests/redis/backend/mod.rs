//! The backend by itself, without a gate or a keeper of leases: what it does of its own
//! accord. (What its scripts do is held against a reference in `tests/protocol`.)

mod drops;
mod leases;
mod waiting;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::redis::Redis;
use dlock::backend::{Backend, Grant, Mode, Released, Request};
use tokio::task::JoinHandle;

use crate::lock_name;
use crate::support::redis::RedisServer;
use crate::support::runtimes::one_worker;
use crate::support::wait::{HANG, eventually};

/// A ttl that no test outlives.
const LONG: Duration = HANG.saturating_mul(2);

/// A server for a test that makes runtimes of its own.
fn server() -> RedisServer {
    one_worker().block_on(RedisServer::start())
}

/// A server, and a backend at it.
async fn scene() -> (RedisServer, Arc<Redis>) {
    let server = RedisServer::start().await;
    let redis = Arc::new(started(&server.url()).await);
    (server, redis)
}

async fn started(url: &str) -> Redis {
    let redis = Redis::from_url(url).expect("a valid URL");
    redis.start().await.expect("the backend starts");
    redis
}

fn write(key: &str) -> Request {
    Request::new(key, Mode::Write, LONG)
}

fn read(key: &str) -> Request {
    Request::new(key, Mode::Read, LONG)
}

/// Asks until the answer is yes.
async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    eventually(what, async || ask().await.then_some(())).await;
}

/// Takes a lock that is free.
async fn take(redis: &Redis, request: &Request) -> Grant {
    redis
        .try_acquire(request)
        .await
        .expect("an answer")
        .expect("the lock is free")
}

/// Gives back what is held.
async fn release(redis: &Redis, request: &Request) {
    let released = redis.release(request).await.expect("an answer");
    assert_eq!(released, Released::Released);
}

/// A task that waits for the lock.
fn wait(redis: &Arc<Redis>, request: &Request) -> JoinHandle<Grant> {
    let (redis, request) = (Arc::clone(redis), request.clone());
    tokio::spawn(async move { redis.acquire(&request).await.expect("the lock") })
}

/// One that waits for "a" as the last of so many.
async fn waits(
    server: &RedisServer,
    redis: &Arc<Redis>,
    request: &Request,
    length: usize,
) -> JoinHandle<Grant> {
    let waiter = wait(redis, request);
    queued(server, "a", length).await;
    waiter
}

/// The lock "a" was granted to one who waited for it.
fn is_granted(server: &RedisServer, request: &Request) {
    let (value, granted) = (lock_value(server, "a"), format!("w:{};", request.owner));
    assert!(
        value.starts_with(&granted) && value.ends_with('+'),
        "{value}"
    );
}

/// Until so many wait for the key.
async fn queued(server: &RedisServer, key: &str, length: usize) {
    let what = format!("{length} waiters for {key}");
    until(&what, || async { queue_of(server, key).len() == length }).await;
}

fn queue_of(server: &RedisServer, key: &str) -> Vec<String> {
    server.run(&["LRANGE", &format!("{}:queue", lock_name(key)), "0", "-1"])
}

/// What the lock holds. Whether a waiter has answered its grant already is a
/// matter of luck, and is not shown.
fn lock_value(server: &RedisServer, key: &str) -> String {
    server
        .run::<Option<String>>(&["GET", &lock_name(key)])
        .unwrap_or_default()
        .replace('?', "+")
}
