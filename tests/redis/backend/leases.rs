//! One lock, one holder: what it is to take, keep and give back.

use std::time::Duration;

use dlock::backend::{Backend, Released, Renewed};

use super::{LONG, is_renewed, read, scene, take, until, write};

#[tokio::test]
async fn a_stop_closes_all_connections() {
    let (server, redis) = scene().await;
    take(&redis, &write("a")).await;
    redis.stop().await;
    until("only that of the question is left", || async {
        server.run::<String>(&["CLIENT", "LIST"]).lines().count() == 1
    })
    .await;
}

#[tokio::test]
async fn only_the_owner_renews_or_releases() {
    let (server, redis) = scene().await;
    for (held, other) in [(write("a"), write("a")), (read("b"), read("b"))] {
        let lock = format!("dlock:{{{}}}", held.key);
        take(&redis, &held).await;
        let value: String = server.run(&["GET", &lock]);
        assert_eq!(redis.release(&other).await.unwrap(), Released::NotHeld);
        let mut shorter = other.clone();
        shorter.ttl = Duration::from_millis(100);
        assert!(!is_renewed(&redis, &shorter).await);
        assert_eq!(server.run::<String>(&["GET", &lock]), value);
        assert!(server.run::<u64>(&["PTTL", &lock]) > 1000);
        assert!(is_renewed(&redis, &held).await);
        assert_eq!(redis.release(&held).await.unwrap(), Released::Released);
        assert_eq!(redis.release(&held).await.unwrap(), Released::NotHeld);
        assert!(!is_renewed(&redis, &held).await);
    }
    assert_eq!(server.keys().await, ["dlock:token"]);
}

/// More than are sent at once, and of every kind.
#[tokio::test]
async fn many_leases_are_renewed_together() {
    let (server, redis) = scene().await;
    let mut requests = Vec::new();
    for index in 0..600 {
        let key = index.to_string();
        let mut request = if index % 3 == 0 {
            read(&key)
        } else {
            write(&key)
        };
        request.ttl = LONG / 2;
        if index % 3 != 2 {
            take(&redis, &request).await;
        }
        request.ttl = LONG;
        requests.push(request);
    }
    let renewed = redis.renew(&requests).await;
    assert_eq!(renewed.len(), requests.len());
    for (index, renewed) in renewed.into_iter().enumerate() {
        if index % 3 == 2 {
            assert!(matches!(renewed, Ok(Renewed::Gone)), "{index}: {renewed:?}");
        } else {
            let extended = matches!(renewed, Ok(Renewed::Extended { .. }));
            assert!(extended, "{index}: {renewed:?}");
            let left: u128 = server.run(&["PTTL", &format!("dlock:{{{index}}}")]);
            assert!(left > (LONG / 2).as_millis(), "{index}: {left} ms");
        }
    }
}
