//! One lock, one holder: what it is to take, keep and give back.

use std::time::Duration;

use dlock::backend::{Backend, Released, Renewed};

use super::{read, started, take, until, write};
use crate::support::redis::RedisServer;

#[tokio::test]
async fn a_stop_closes_all_connections() {
    let server = RedisServer::start().await;
    let redis = started(&server.url()).await;
    take(&redis, &write("a")).await;
    redis.stop().await;
    until("only that of the question is left", || async {
        server.run::<String>(&["CLIENT", "LIST"]).lines().count() == 1
    })
    .await;
}

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
