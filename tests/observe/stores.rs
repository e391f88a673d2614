//! A store elsewhere: what happens on the manager's own thread is seen too.

use std::time::Duration;

use crate::collector::collector;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{config, connect, is_lost, is_unavailable};
use crate::support::redis::RedisServer;
use crate::support::wait::until;

const TTL: Duration = Duration::from_millis(900);

#[tokio::test]
async fn locks_in_redis_are_seen() {
    collector();
    let mut attempts = 0;
    let attempt = async || {
        attempts += 1;
        // What an attempt before has counted is not counted along.
        are_seen(format!("stores/redis:{attempts}").leak()).await;
    };
    unless_it_stands_still(TTL / 4, attempt).await;
}

async fn are_seen(key: &'static str) {
    let mut server = RedisServer::start().await;
    let config = config(&server.url()).request_timeout(Duration::from_secs(1));
    let manager = connect(config).await;
    let lock = || {
        let lock = manager.lock(key).template(key);
        lock.ttl(TTL)
    };
    let number = |name, more: &[(&'static str, &'static str)]| {
        let labels = [("template", key), ("store", "redis")];
        collector().metric(name, &[&labels, more].concat())
    };
    // Two calls of one process, the second after the first by hand-over.
    let renewed = async || number("dlock_renewals_total", &[("outcome", "renewed")]);
    let renewed_twice = until("two renewals", renewed, |&renewed| renewed >= Some(2.0));
    let (first, second) = tokio::join!(lock().run(renewed_twice), lock().run(async {}));
    first.expect("it is renewed");
    second.expect("its turn comes");
    assert_eq!(number("dlock_handovers_total", &[]), Some(1.0));
    let renewals = collector().of_target(key, "dlock::renewal");
    assert!(renewals.iter().all(|line| line.span("store") == "redis"));

    // The server goes away while the lock is held.
    let body = async {
        server.kill();
        std::future::pending::<()>().await;
    };
    is_lost(lock().run(body).await);
    let loss = collector().line(key, "dlock::loss");
    assert_eq!(loss.span("template"), key);
    let expired = number("dlock_losses_total", &[("reason", "expired")]);
    assert_eq!(expired, Some(1.0));
    is_unavailable(lock().acquire().await);
    let errors = [("operation", "acquire"), ("kind", "unavailable")];
    assert_eq!(number("dlock_store_errors_total", &errors), Some(1.0));
}
