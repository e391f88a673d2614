//! Waiting: in order, across backends, and for what is freed without a word.

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::backend::redis::Redis;
use dlock_runtime::backend::{Backend, Grant, Mode, Released, Renewed, Request};
use tokio::task::JoinHandle;

use crate::support::{Server, read, soon, started, take, token, until, write};

/// A task that waits for the lock.
fn wait(redis: &Arc<Redis>, request: &Request) -> JoinHandle<Grant> {
    let (redis, request) = (Arc::clone(redis), request.clone());
    tokio::spawn(async move { redis.acquire(&request).await.expect("the lock is had") })
}

/// Until the queue of the key is this long.
async fn queued(server: &Server, key: &str, length: usize) {
    let queue = format!("dlock:{{{key}}}:queue");
    until(&format!("{length} in {queue}"), || async {
        server.run::<usize>(&["LLEN", &queue]) == length
    })
    .await;
}

#[tokio::test]
async fn waiters_of_two_backends_are_served_in_order() {
    let server = Server::start();
    let backends = [
        Arc::new(started(&server.url()).await),
        Arc::new(started(&server.url()).await),
    ];
    let holder = write("a");
    let mut last = take(&backends[0], &holder).await;
    let mut waiters = Vec::new();
    for index in 0..6 {
        let request = write("a");
        waiters.push((wait(&backends[index % 2], &request), request, index % 2));
        queued(&server, "a", index + 1).await;
    }
    assert_eq!(
        backends[0].release(&holder).await.unwrap(),
        Released::Released
    );
    for (waiter, request, backend) in waiters {
        let grant = soon("the next in the queue", waiter).await.unwrap();
        assert!(
            token(&grant) > token(&last),
            "{grant:?} does not follow {last:?}"
        );
        last = grant;
        assert_eq!(
            backends[backend].release(&request).await.unwrap(),
            Released::Released
        );
    }
    for backend in &backends {
        backend.stop().await;
    }
    assert_eq!(server.keys(), ["dlock:token"]);
}
