//! One lock, one holder: what it is to take, keep and give back.

use std::time::Duration;

use dlock_runtime::backend::{Backend, Mode, Released, Renewed, Request};

use crate::support::{LONG, Server, read, soon, started, take, token, until, write};

#[tokio::test]
async fn a_lock_has_one_holder() {
    let server = Server::start();
    let redis = started(&server.url()).await;
    let (first, second) = (write("a"), write("a"));
    let grant = take(&redis, &first).await;
    assert!(token(&grant) > 0);
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
        take(&redis, &held).await;
        let value: String = server.run(&["GET", &format!("dlock:{{{}}}", held.key)]);
        assert_eq!(redis.release(&other).await.unwrap(), Released::NotHeld);
        let mut shorter = other.clone();
        shorter.ttl = Duration::from_millis(100);
        assert!(matches!(
            redis.renew(&[shorter]).await[..],
            [Ok(Renewed::Gone)]
        ));
        assert_eq!(
            server.run::<String>(&["GET", &format!("dlock:{{{}}}", held.key)]),
            value
        );
        assert!(matches!(
            redis.renew(&[held.clone()]).await[..],
            [Ok(Renewed::Extended { .. })]
        ));
        assert_eq!(redis.release(&held).await.unwrap(), Released::Released);
        assert_eq!(redis.release(&held).await.unwrap(), Released::NotHeld);
        assert!(matches!(
            redis.renew(&[held]).await[..],
            [Ok(Renewed::Gone)]
        ));
    }
    assert_eq!(server.keys(), ["dlock:token"]);
}
