//! A store elsewhere: what happens on the manager's own thread is seen too.

use std::time::Duration;

use dlock::{Config, LockError, LockManager};

use crate::collector::collector;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

#[tokio::test]
async fn locks_in_redis_are_seen() {
    collector();
    let mut server = RedisServer::start().await;
    let config = Config::from_url(&server.url())
        .expect("a valid URL")
        .request_timeout(Duration::from_secs(1));
    let manager = LockManager::connect(config).await.expect("it answers");
    let key = "stores/redis";
    let lock = || {
        let lock = manager.lock(key).template(key);
        lock.ttl(Duration::from_millis(600))
    };
    let labels = |more: &[(&'static str, &'static str)]| {
        let mut labels = vec![("template", key), ("store", "redis")];
        labels.extend(more);
        labels
    };
    let renewed = || {
        let labels = labels(&[("outcome", "renewed")]);
        collector().metric("dlock_renewals_total", &labels)
    };
    // Two calls of one process, the second after the first by hand-over.
    let renewed_twice = || {
        eventually("two renewals", async || {
            (renewed() >= Some(2.0)).then_some(())
        })
    };
    let (first, second) = tokio::join!(lock().run(renewed_twice()), lock().run(async {}));
    first.expect("it is renewed");
    second.expect("its turn comes");
    let handovers = collector().metric("dlock_handovers_total", &labels(&[]));
    assert_eq!(handovers, Some(1.0));
    let renewals = collector().of_target(key, "dlock::renewal");
    assert!(renewals.iter().all(|line| line.span("store") == "redis"));

    // The server goes away while the lock is held.
    let body = async {
        server.kill();
        std::future::pending::<()>().await;
    };
    let lost = lock().run(body).await;
    assert!(matches!(lost, Err(LockError::Lost { .. })), "{lost:?}");
    let loss = collector().line(key, "dlock::loss");
    assert_eq!(loss.span("template"), key);
    let expired = labels(&[("reason", "expired")]);
    let expired = collector().metric("dlock_losses_total", &expired);
    assert_eq!(expired, Some(1.0));
    let refused = lock().acquire().await;
    assert!(matches!(refused, Err(LockError::Unavailable { .. })));
    let errors = labels(&[("operation", "acquire"), ("kind", "unavailable")]);
    let errors = collector().metric("dlock_store_errors_total", &errors);
    assert_eq!(errors, Some(1.0));
}
