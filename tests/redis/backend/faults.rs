//! A network and a server that fail: what is lost, late, silent or refused.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock::backend::redis::Redis;
use dlock::backend::{Backend, BackendError, BackendErrorKind, Released, Renewed};

use super::{
    lock_value, queue_of, queued, read, release, runtime, server, started, take, through, until,
    wait, write,
};
use crate::support::proxy::Proxy;
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::{HANG, within};

/// Short, so that what ends by it ends soon.
const TIMEOUT: Duration = Duration::from_secs(1);

async fn impatient(url: &str) -> Arc<Redis> {
    let redis = Redis::from_url(url)
        .expect("a valid URL")
        .request_timeout(TIMEOUT);
    redis.start().await.expect("the backend starts");
    Arc::new(redis)
}

/// The server forgets the scripts, and each operation heals within its call.
#[tokio::test]
async fn forgotten_scripts_are_sent_again() {
    let mut server = Setup::default().append_only().start().await;
    let redis = started(&server.url()).await;
    async fn forget(server: &mut RedisServer, restart: bool) {
        if restart {
            server.restart().await;
        } else {
            server.command::<()>(&["SCRIPT", "FLUSH"]).await;
        }
    }
    for restart in [false, true] {
        let readers: Vec<_> = (0..10).map(|_| read("shared")).collect();
        let writer = write("a");
        take(&redis, &writer).await;
        for reader in &readers {
            forget(&mut server, false).await;
            take(&redis, reader).await;
        }
        forget(&mut server, restart).await;
        let busy = redis.try_acquire(&write("a")).await.expect("an answer");
        assert!(busy.is_none());
        forget(&mut server, restart).await;
        let mut all = readers.clone();
        all.push(writer.clone());
        for renewed in redis.renew(&all).await {
            assert!(
                matches!(renewed, Ok(Renewed::Extended { .. })),
                "{renewed:?}"
            );
        }
        forget(&mut server, restart).await;
        assert!(redis.inspect("a").await.expect("an answer").is_some());
        forget(&mut server, restart).await;
        assert_eq!(redis.list("").await.expect("a list").len(), 2);
        for lease in &all {
            forget(&mut server, false).await;
            release(&redis, lease).await;
        }
    }
}

/// The `SET` is kept back on its way until its caller has given up and all
/// seems to be given back. It locks the key for nobody, but not for long.
#[tokio::test]
async fn a_set_that_arrives_late_leaves_no_ghost() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let redis = impatient(&through(&proxy)).await;
    failed_and_given_back(&server, &proxy, redis.try_acquire(&write("a"))).await;
    proxy.thaw();
    until("the late command", || async { server.calls("set") > 0 }).await;
    until("the ghost to go", || async {
        lock_value(&server, "a").is_empty()
    })
    .await;
}

/// The same for the script that takes a place in the queue.
#[tokio::test]
async fn a_place_that_is_taken_late_is_left_again() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let redis = impatient(&through(&proxy)).await;
    let holder = write("a");
    take(&redis, &holder).await;
    // Now the server knows the script.
    assert!(redis.try_acquire(&read("a")).await.unwrap().is_none());
    failed_and_given_back(&server, &proxy, redis.acquire(&read("a"))).await;
    let asked = server.calls("rpush");
    proxy.thaw();
    until("the late command", || async {
        server.calls("rpush") > asked
    })
    .await;
    until("an empty queue", || async {
        queue_of(&server, "a").is_empty()
    })
    .await;
    release(&redis, &holder).await;
}

/// The server stands still for longer than the ttl, and then does what it was
/// told before.
#[tokio::test]
async fn a_place_outlives_no_outage() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let redis = impatient(&through(&proxy)).await;
    let direct = started(&server.url()).await;
    let holder = write("a");
    take(&direct, &holder).await;
    // Now the server knows the script.
    assert!(redis.try_acquire(&read("a")).await.unwrap().is_none());
    for queues_before in [false, true] {
        let mut request = read("a");
        request.ttl = Duration::from_millis(20);
        if !queues_before {
            proxy.stall(true);
        }
        let (answer, ()) = tokio::join!(within(HANG, redis.acquire(&request)), async {
            if queues_before {
                queued(&server, "a", 1).await;
                proxy.stall(true);
            }
        });
        assert_eq!(answer.unwrap_err().kind(), BackendErrorKind::Unavailable);
        // Its ttl has passed long ago.
        tokio::time::sleep(TIMEOUT).await;
        let asked = server.calls("rpush");
        proxy.stall(false);
        until("the late command", || async {
            queues_before || server.calls("rpush") > asked
        })
        .await;
        until("an empty queue", || async {
            queue_of(&server, "a").is_empty()
        })
        .await;
    }
    release(&direct, &holder).await;
}

/// A call whose first command is kept back, and who can make no second attempt.
/// Then it is given back, to no effect.
async fn failed_and_given_back<T: std::fmt::Debug>(
    server: &RedisServer,
    proxy: &Proxy,
    call: impl Future<Output = Result<T, BackendError>>,
) {
    proxy.freeze();
    proxy.refuse_new(true);
    let error = within(HANG, call).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    // Which looks into the queue.
    let given_back = || server.calls("lrem");
    let before = given_back();
    proxy.refuse_new(false);
    until("it to be given back", || async { given_back() > before }).await;
}

/// The lock was taken, but nobody heard of it: the answer is asked for, and the
/// caller is not told that somebody else has the lock.
#[tokio::test]
async fn a_lost_answer_is_asked_for_again() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let redis = impatient(&through(&proxy)).await;
    let request = write("a");
    proxy.swallow_replies(true);
    let attempt = tokio::spawn({
        let (redis, request) = (Arc::clone(&redis), request.clone());
        async move { redis.try_acquire(&request).await }
    });
    until("the lock", || async {
        !lock_value(&server, "a").is_empty()
    })
    .await;
    // Answers come again, but not those that were lost.
    proxy.swallow_replies(false);
    let grant = within(HANG, attempt).await.unwrap().unwrap();
    assert!(
        grant.is_some(),
        "its own lock was taken for somebody else's"
    );
    assert_eq!(lock_value(&server, "a"), format!("w:{}", request.owner));

    // And so for a release, by a script that the server knows.
    let other = write("b");
    take(&redis, &other).await;
    release(&redis, &other).await;
    proxy.swallow_replies(true);
    let releasing = tokio::spawn({
        let (redis, request) = (Arc::clone(&redis), request.clone());
        async move { redis.release(&request).await }
    });
    until("the release", || async {
        lock_value(&server, "a").is_empty()
    })
    .await;
    proxy.swallow_replies(false);
    let released = within(HANG, releasing).await.unwrap();
    assert_eq!(released.unwrap(), Released::Released);
}

/// A lock that was had in spite of a lost answer is given back for good, though
/// the first `SET` arrives only then.
#[tokio::test]
async fn a_ghost_that_comes_after_the_release_goes_too() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let redis = impatient(&through(&proxy)).await;
    let request = write("a");
    // Only what is open now is held; the second attempt gets through.
    proxy.freeze();
    let grant = within(HANG, redis.try_acquire(&request)).await.unwrap();
    assert!(grant.is_some());
    release(&redis, &request).await;
    let value = format!("w:{}", request.owner);
    server.run::<()>(&["SET", "dlock:{a}", &value, "NX", "PX", "60000"]);
    until("the ghost to go", || async {
        lock_value(&server, "a").is_empty()
    })
    .await;
}

/// The connection is open and nothing comes over it: each operation gets a new
/// one within its call.
#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let redis = impatient(&through(&proxy)).await;
    let request = write("a");
    proxy.freeze();
    assert!(
        within(HANG, redis.try_acquire(&request))
            .await
            .unwrap()
            .is_some()
    );
    proxy.freeze();
    let renewed = within(HANG, redis.renew(std::slice::from_ref(&request))).await;
    assert!(
        matches!(renewed[..], [Ok(Renewed::Extended { .. })]),
        "{renewed:?}"
    );
    proxy.freeze();
    let released = within(HANG, redis.release(&request)).await;
    assert_eq!(released.unwrap(), Released::Released);
    proxy.freeze();
    assert!(within(HANG, redis.inspect("a")).await.unwrap().is_none());
}

/// The same for a waiter: its messages would come over the silent connection.
#[tokio::test]
async fn a_waiter_on_a_silent_connection_is_served() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    let (redis, other) = (
        impatient(&through(&proxy)).await,
        started(&server.url()).await,
    );
    let (holder, request) = (write("a"), write("a"));
    take(&other, &holder).await;
    let waiter = wait(&redis, &request);
    queued(&server, "a", 1).await;
    proxy.freeze();
    release(&other, &holder).await;
    within(HANG, waiter).await.unwrap();
}

/// The backend cannot be told anything, while its callers can ask.
#[test]
fn a_waiter_whom_no_message_can_reach_asks_by_itself() {
    let server = server();
    let proxy = Proxy::to(server.port());
    let (manager, callers) = (runtime(), runtime());
    let url = through(&proxy);
    let redis = manager
        .block_on(manager.spawn(async move { impatient(&url).await }))
        .unwrap();
    callers.block_on(async {
        let (holder, request) = (write("a"), write("a"));
        take(&redis, &holder).await;
        let waiter = wait(&redis, &request);
        queued(&server, "a", 1).await;
        proxy.refuse_new(true);
        server.run::<u64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        // It has asked once more, as the connection broke, and waits on.
        let asked = || server.calls("evalsha");
        let before = asked();
        until("a question", || async { asked() > before }).await;
        release(&redis, &holder).await;
        within(HANG, waiter).await.unwrap();
    });
}

/// Also when it comes between the first connection and its first answers.
#[tokio::test]
async fn a_cut_while_it_starts_is_made_up_for() {
    let server = RedisServer::start().await;
    let proxy = Proxy::to(server.port());
    for _ in 0..30 {
        let redis = Redis::from_url(&through(&proxy)).expect("a valid URL");
        let cuts = async {
            for _ in 0..10 {
                proxy.cut();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let (started, ()) = tokio::join!(within(HANG, redis.start()), cuts);
        started.expect("the backend starts");
        redis.stop().await;
    }
}

/// For longer than the request timeout.
#[tokio::test]
async fn a_waiter_is_told_of_an_outage() {
    for silent in [false, true] {
        let mut server = RedisServer::start().await;
        let proxy = Proxy::to(server.port());
        let redis = impatient(&through(&proxy)).await;
        take(&redis, &write("a")).await;
        let waiter = tokio::spawn({
            let redis = Arc::clone(&redis);
            async move { redis.acquire(&write("a")).await }
        });
        queued(&server, "a", 1).await;
        if silent {
            proxy.stall(true);
        } else {
            server.kill();
            proxy.cut();
        }
        let error = within(HANG, waiter).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        // How long it was silent, and not how long the last attempt took.
        let in_seconds = !error.to_string().contains("ms;");
        assert!(in_seconds || !silent, "{error}");
        assert!(redis.try_acquire(&write("b")).await.is_err());
    }
}

/// For less: the server comes back empty, and the waiters go on waiting.
#[tokio::test]
async fn waiters_outlive_a_restart() {
    let mut server = RedisServer::start().await;
    let redis = Arc::new(started(&server.url()).await);
    take(&redis, &write("a")).await;
    let requests = [write("a"), write("a"), write("b")];
    let waiters = requests.each_ref().map(|request| wait(&redis, request));
    within(HANG, until_done(&waiters[2])).await;
    queued(&server, "a", 2).await;
    server.restart().await;
    for (waiter, request) in waiters.into_iter().zip(requests) {
        let redis = Arc::clone(&redis);
        tokio::spawn(async move {
            waiter.await.unwrap();
            // What was held before the restart is lost.
            let _ = redis.release(&request).await.unwrap();
        });
    }
    until("an end of it", || async {
        redis.list("").await.is_ok_and(|locks| locks.is_empty())
    })
    .await;
}

async fn until_done<T>(task: &tokio::task::JoinHandle<T>) {
    while !task.is_finished() {
        tokio::task::yield_now().await;
    }
}

/// Without memory a lease can still be kept, handed on and given back.
#[tokio::test]
async fn a_full_server_keeps_its_promises() {
    let server = RedisServer::start().await;
    let redis = Arc::new(started(&server.url()).await);
    let (holder, request) = (write("a"), write("a"));
    take(&redis, &holder).await;
    let waiter = wait(&redis, &request);
    queued(&server, "a", 1).await;
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let renewed = redis.renew(std::slice::from_ref(&holder)).await;
    assert!(
        matches!(renewed[..], [Ok(Renewed::Extended { .. })]),
        "{renewed:?}"
    );
    release(&redis, &holder).await;
    assert_eq!(lock_value(&server, "a"), format!("w:{}+", request.owner));
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    within(HANG, waiter).await.unwrap();
    release(&redis, &request).await;
}
