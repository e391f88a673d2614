//! One lock, one holder: what it is to take, keep and give back.

use std::sync::Arc;
use std::time::Duration;

use dlock::backend::redis::Redis;
use dlock::backend::{Backend, BackendErrorKind, Mode, Released, Renewed};

use super::{LONG, read, server, started, take, until, write};
use crate::support::redis::RedisServer;

#[tokio::test]
async fn only_the_owner_renews_or_releases() {
    let server = RedisServer::start().await;
    let redis = started(&server.url()).await;
    for (held, other) in [(write("a"), write("a")), (read("b"), read("b"))] {
        let lock = format!("dlock:{{{}}}", held.key);
        take(&redis, &held).await;
        let value: String = server.run(&["GET", &lock]);
        assert_eq!(redis.release(&other).await.unwrap(), Released::NotHeld);
        let mut shorter = other.clone();
        shorter.ttl = Duration::from_millis(100);
        assert!(matches!(
            redis.renew(&[shorter]).await[..],
            [Ok(Renewed::Gone)]
        ));
        assert_eq!(server.run::<String>(&["GET", &lock]), value);
        assert!(server.run::<u64>(&["PTTL", &lock]) > 1000);
        let held = [held];
        assert!(matches!(
            redis.renew(&held).await[..],
            [Ok(Renewed::Extended { .. })]
        ));
        assert_eq!(redis.release(&held[0]).await.unwrap(), Released::Released);
        assert_eq!(redis.release(&held[0]).await.unwrap(), Released::NotHeld);
        assert!(matches!(redis.renew(&held).await[..], [Ok(Renewed::Gone)]));
    }
    assert_eq!(server.keys().await, ["dlock:token"]);
}

/// More than are sent at once, and of every kind.
#[tokio::test]
async fn many_leases_are_renewed_together() {
    let server = RedisServer::start().await;
    let redis = started(&server.url()).await;
    let mut requests = Vec::new();
    for index in 0..600 {
        let mut request = match index % 3 {
            0 => read(&format!("read:{index}")),
            _ => write(&format!("write:{index}")),
        };
        request.ttl = Duration::from_secs(20);
        if index % 3 != 2 {
            take(&redis, &request).await;
        }
        request.ttl = LONG;
        requests.push(request);
    }
    let renewed = redis.renew(&requests).await;
    assert_eq!(renewed.len(), requests.len());
    for (index, (request, renewed)) in requests.iter().zip(renewed).enumerate() {
        let extended = matches!(renewed, Ok(Renewed::Extended { .. }));
        assert_eq!(extended, index % 3 != 2, "{index}: {renewed:?}");
        if extended {
            let left: u64 = server.run(&["PTTL", &format!("dlock:{{{}}}", request.key)]);
            assert!(left > 20_000, "{index}: {left} ms");
        }
    }
}

#[tokio::test]
async fn locks_are_seen_as_they_are() {
    let server = RedisServer::start().await;
    let redis = started(&server.url()).await;
    let writer = write("shop:[1]*");
    let readers = [read("shop:2"), read("shop:2")];
    take(&redis, &writer).await;
    for reader in &readers {
        take(&redis, reader).await;
    }
    take(&redis, &write("other")).await;
    server.run::<()>(&["SET", "dlock:{shop:foreign}", "mine"]);
    server.run::<u64>(&["RPUSH", "dlock:{shop:list}", "mine"]);

    let seen = redis.inspect("shop:[1]*").await.unwrap().expect("held");
    assert_eq!(
        (seen.key.as_str(), seen.mode, seen.waiters),
        ("shop:[1]*", Mode::Write, 0)
    );
    assert_eq!(seen.holders.len(), 1);
    assert_eq!(seen.holders[0].owner, writer.owner.to_string());
    assert!(seen.holders[0].expires_in.expect("an end") <= LONG);

    let seen = redis.inspect("shop:2").await.unwrap().expect("held");
    assert_eq!(seen.mode, Mode::Read);
    let mut owners: Vec<_> = seen
        .holders
        .into_iter()
        .map(|holder| holder.owner)
        .collect();
    let mut expected = readers.map(|reader| reader.owner.to_string());
    owners.sort();
    expected.sort();
    assert_eq!(owners, expected);
    assert!(redis.inspect("shop:3").await.unwrap().is_none());

    let list = async |prefix| {
        let found = redis.list(prefix).await.unwrap();
        let mut keys: Vec<_> = found.into_iter().map(|lock| lock.key).collect();
        keys.sort();
        keys
    };
    assert_eq!(list("shop:").await, ["shop:2", "shop:[1]*"]);
    assert_eq!(list("shop:[").await, ["shop:[1]*"]);
    assert_eq!(list("shop:?").await, [""; 0]);
    assert_eq!(list("").await, ["other", "shop:2", "shop:[1]*"]);
}

/// One `init`, many `#[tokio::test]`s: the connection of a runtime that has
/// ended is neither used nor kept.
#[test]
fn every_runtime_has_its_own_connection() {
    let server = server();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let manager = super::runtime();
    let url = server.url();
    let redis = manager.block_on(async move {
        Arc::new(
            tokio::spawn(async move { started(&url).await })
                .await
                .unwrap(),
        )
    });
    let clients = || {
        let clients: String = server.run(&["CLIENT", "LIST"]);
        clients.lines().count()
    };
    for _ in 0..5 {
        let request = write("a");
        // Taken on one runtime, given back on another.
        runtime().block_on(take(&redis, &request));
        let released = runtime().block_on(redis.release(&request));
        assert_eq!(released.unwrap(), Released::Released);
    }
    manager.block_on(until("closed connections", || async {
        // The manager's, and the one that asks.
        clients() == 2
    }));
    // Two runtimes at a time, and many first calls on one of them.
    let (one, two) = (runtime(), runtime());
    one.block_on(async {
        let calls = (0..20).map(|index| {
            let (redis, request) = (Arc::clone(&redis), write(&format!("key:{index}")));
            tokio::spawn(async move { redis.try_acquire(&request).await.unwrap().is_some() })
        });
        for call in calls.collect::<Vec<_>>() {
            assert!(call.await.unwrap());
        }
    });
    two.block_on(take(&redis, &write("two")));
    assert_eq!(clients(), 4);
    drop((one, two));

    // Nowhere to run.
    let outside = std::pin::pin!(redis.inspect("a"));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::future::Future::poll(outside, &mut context) {
        std::task::Poll::Ready(Err(error)) => {
            assert_eq!(error.kind(), BackendErrorKind::Unsupported);
        }
        other => panic!("outside a runtime: {other:?}"),
    }
}

#[tokio::test]
async fn a_backend_works_between_start_and_stop() {
    let server = RedisServer::start().await;
    let redis = Redis::from_url(&server.url()).unwrap();
    let early = redis.try_acquire(&write("a")).await.unwrap_err();
    assert_eq!(early.kind(), BackendErrorKind::Unsupported);
    redis.start().await.unwrap();
    assert!(redis.start().await.is_err());
    take(&redis, &write("a")).await;
    redis.stop().await;
    let late = redis.try_acquire(&write("b")).await.unwrap_err();
    assert_eq!(late.kind(), BackendErrorKind::Unsupported);
    until("closed connections", || async {
        server.run::<String>(&["CLIENT", "LIST"]).lines().count() == 1
    })
    .await;
}
