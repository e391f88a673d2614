//! Leases that are renewed together, and connections that end.

use dlock::backend::{Backend, Renewed};

use super::{LONG, read, scene, take, until, write};

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
