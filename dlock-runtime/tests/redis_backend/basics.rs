//! One lock, one holder: what it is to take, keep and give back.

use std::sync::Arc;
use std::time::Duration;

use dlock_runtime::backend::redis::Redis;
use dlock_runtime::backend::{Backend, BackendErrorKind, Mode, Released, Renewed, TokenTier};

use crate::support::{LONG, Server, read, soon, started, take, token, until, write};

#[tokio::test]
async fn a_lock_has_one_holder() {
    let server = Server::start();
    let redis = started(&server.url()).await;
    let (first, second) = (write("a"), write("a"));
    let grant = take(&redis, &first).await;
    assert!(redis.try_acquire(&second).await.unwrap().is_none());
    assert_eq!(redis.release(&first).await.unwrap(), Released::Released);
    let next = take(&redis, &second).await;
    assert!(
        token(&next) >= token(&grant) + 64,
        "{next:?} does not follow {grant:?}"
    );
    assert_eq!(redis.release(&second).await.unwrap(), Released::Released);
    assert_eq!(server.keys(), ["dlock:token"]);
}

#[tokio::test]
async fn only_the_owner_renews_or_releases() {
    let server = Server::start();
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
    assert_eq!(server.keys(), ["dlock:token"]);
}

/// More than are sent at once, and of every kind.
#[tokio::test]
async fn many_leases_are_renewed_together() {
    let server = Server::start();
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
async fn what_dlock_did_not_write_is_named_and_left_alone() {
    let server = Server::start();
    let redis = started(&server.url()).await;
    server.run::<()>(&["SET", "dlock:{string}", "mine"]);
    server.run::<u64>(&["RPUSH", "dlock:{list}", "mine"]);
    server.run::<u64>(&["RPUSH", "dlock:{readers}:readers", "mine"]);
    server.run::<()>(&["SET", "dlock:{readers}", "r:1.1"]);
    let keys = server.keys();
    for (key, name, kind) in [
        ("string", "`dlock:{string}`", "string"),
        ("list", "`dlock:{list}`", "list"),
        ("readers", "`dlock:{readers}:readers`", "list"),
    ] {
        for request in [write(key), read(key)] {
            let tried = redis.try_acquire(&request).await.map(drop).unwrap_err();
            let acquired = soon("an error", redis.acquire(&request)).await.map(drop);
            for error in [tried, acquired.unwrap_err()] {
                assert_eq!(error.kind(), BackendErrorKind::Config);
                let message = error.to_string();
                assert!(
                    message.contains(name) && message.contains(kind),
                    "{message}"
                );
                assert!(message.contains("remove it"), "{message}");
            }
        }
    }
    assert!(redis.inspect("list").await.is_err());
    assert_eq!(server.keys(), keys);
    assert_eq!(server.run::<String>(&["GET", "dlock:{string}"]), "mine");
    assert_eq!(server.run::<u64>(&["LLEN", "dlock:{list}"]), 1);
}

/// A lock for which there is no token is not had, and not left behind.
#[tokio::test]
async fn a_failed_script_leaves_nothing() {
    let server = Server::start();
    let redis = started(&server.url()).await;
    for value in ["many", "1.5"] {
        server.run::<()>(&["SET", "dlock:token", value]);
        for request in [write("a"), read("a")] {
            let tried = redis.try_acquire(&request).await.map(drop);
            let acquired = soon("an error", redis.acquire(&request)).await.map(drop);
            for error in [tried.unwrap_err(), acquired.unwrap_err()] {
                assert_eq!(error.kind(), BackendErrorKind::Config);
                assert!(error.to_string().contains("`dlock:token`"), "{error}");
            }
            until("nothing to be left", || async {
                server.keys() == ["dlock:token"]
            })
            .await;
        }
    }
}

#[tokio::test]
async fn locks_are_seen_as_they_are() {
    let server = Server::start();
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

#[tokio::test]
async fn tokens_rise_though_the_server_loses_its_data() {
    let mut server = Server::start();
    let redis = started(&server.url()).await;
    let mut last = 0;
    let mut rise = async |what: &str, redis: &Redis| {
        for request in [write("a"), read("a")] {
            let grant = take(redis, &request).await;
            assert!(
                token(&grant) > last,
                "{what}: {} after {last}",
                token(&grant)
            );
            last = token(&grant) + 63;
            assert_eq!(redis.release(&request).await.unwrap(), Released::Released);
        }
    };
    rise("at first", &redis).await;
    server.run::<()>(&["FLUSHALL"]);
    rise("flushed while connected", &redis).await;
    server.run::<()>(&["DEL", "dlock:token"]);
    rise("the counter removed", &redis).await;
    server.run::<()>(&["SET", "dlock:token", "7"]);
    rise("the counter set back", &redis).await;
    server.restart();
    rise("restarted empty", &redis).await;
    rise("another backend", &started(&server.url()).await).await;
}

#[tokio::test]
async fn tokens_are_strict_if_every_write_is_on_disk() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let redis = started(&server.url()).await;
    assert_eq!(redis.capabilities().tokens, TokenTier::Strict);
    let server = Server::with(&["--appendonly", "yes"]);
    let redis = started(&server.url()).await;
    assert_eq!(redis.capabilities().tokens, TokenTier::BestEffort);
    // Nobody may ask.
    let server = Server::with(&["--rename-command", "CONFIG", ""]);
    let redis = started(&server.url()).await;
    assert_eq!(redis.capabilities().tokens, TokenTier::BestEffort);
}

/// One `init`, many `#[tokio::test]`s: the connection of a runtime that has
/// ended is neither used nor kept.
#[test]
fn every_runtime_has_its_own_connection() {
    let server = Server::start();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
    };
    let manager = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
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
    let server = Server::start();
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
