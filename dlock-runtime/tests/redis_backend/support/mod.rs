//! What the tests stand on: a server of their own, and backends on it.

pub(crate) mod child;
mod proxy;
mod server;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use proxy::{Flow, Proxy};
pub(crate) use server::Server;

use dlock_runtime::backend::redis::Redis;
use dlock_runtime::backend::{Backend, Grant, Mode, Released, Request};
use tokio::task::JoinHandle;

/// Longer than anything here takes unless it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A ttl that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn started(url: &str) -> Redis {
    let redis = Redis::from_url(url).expect("a valid URL");
    redis.start().await.expect("the backend starts");
    redis
}

pub(crate) fn write(key: &str) -> Request {
    Request::new(key, Mode::Write, LONG)
}

pub(crate) fn read(key: &str) -> Request {
    Request::new(key, Mode::Read, LONG)
}

/// Ends a test that hangs.
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} took longer than {LIMIT:?}"),
    }
}

/// Asks until the answer is yes.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    soon(what, async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub(crate) fn token(grant: &Grant) -> u64 {
    grant.token.into()
}

/// Takes a lock that is free.
pub(crate) async fn take(redis: &Redis, request: &Request) -> Grant {
    redis
        .try_acquire(request)
        .await
        .expect("an answer")
        .expect("the lock is free")
}

/// Gives back what is held.
pub(crate) async fn release(redis: &Redis, request: &Request) {
    let released = redis.release(request).await.expect("an answer");
    assert_eq!(released, Released::Released);
}

/// A task that waits for the lock.
pub(crate) fn wait(redis: &Arc<Redis>, request: &Request) -> JoinHandle<Grant> {
    let (redis, request) = (Arc::clone(redis), request.clone());
    tokio::spawn(async move { redis.acquire(&request).await.expect("the lock") })
}

/// Until so many wait for the key.
pub(crate) async fn queued(server: &Server, key: &str, length: usize) {
    let what = format!("{length} waiters for {key}");
    until(&what, || async { queue_of(server, key).len() == length }).await;
}

pub(crate) fn queue_of(server: &Server, key: &str) -> Vec<String> {
    server.run(&["LRANGE", &format!("dlock:{{{key}}}:queue"), "0", "-1"])
}

/// What the lock holds. Whether a waiter has answered its grant already is a
/// matter of luck, and is not shown.
pub(crate) fn lock_value(server: &Server, key: &str) -> String {
    server
        .run::<Option<String>>(&["GET", &format!("dlock:{{{key}}}")])
        .unwrap_or_default()
        .replace('?', "+")
}
