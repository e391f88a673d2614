//! When a critical section is over, for those who look on: its span is closed,
//! its gauges are down, and nothing is told that did not happen.

use dlock::Config;
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::collector::collector;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{config, connect, had};
use crate::support::redis::RedisServer;
use crate::support::wait::until;
use crate::{memory, ms, settle};

/// No warning, and no loss counted, of a lock that `min_hold` has kept.
fn kept_without_a_word(key: &str, store: &str) {
    let lines = collector().lines(key);
    assert!(
        lines.iter().all(|line| line.level() != "WARN"),
        "{lines:#?}"
    );
    for reason in ["gone", "expired", "overran"] {
        let labels = [("template", key), ("store", store), ("reason", reason)];
        let losses = collector().metric("dlock_losses_total", &labels);
        assert_eq!(losses, Some(0.0), "{reason}: {lines:#?}");
    }
}

async fn spans_are_closed(key: &str, count: usize) {
    let closed = async || collector().closed_spans(key).len();
    until("spans are closed", closed, |&closed| closed == count).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_kept_after_its_body_is_no_loss() {
    let (_memory, manager) = memory().await;
    let key = "ends/kept";
    let lock = manager.lock(key).template(key).min_hold(ms(100));
    lock.run(async {}).await.expect("the lock is free");
    had(&manager, key).await;
    spans_are_closed(key, 2).await;
    kept_without_a_word(key, "memory");
}

#[tokio::test]
async fn a_lock_that_is_kept_in_redis_is_no_loss() {
    collector();
    let mut attempts = 0;
    // A call that does not come for its lock for seconds is warned of.
    unless_it_stands_still(ms(250), async || {
        attempts += 1;
        is_kept_in_redis(format!("ends/kept-in-redis:{attempts}").leak()).await;
    })
    .await;
}

async fn is_kept_in_redis(key: &'static str) {
    let server = RedisServer::start().await;
    let manager = connect(config(&server.url())).await;
    for round in 1..=5 {
        let lock = manager.lock(key).template(key).min_hold(ms(50));
        lock.run(async {}).await.expect("its turn comes");
        spans_are_closed(key, round).await;
    }
    kept_without_a_word(key, "redis");
}

/// A recorder of one thread, of a test's as a rule, or one that came late: what
/// it did not see begin it does not see end.
#[tokio::test(start_paused = true)]
async fn a_gauge_goes_down_where_it_went_up() {
    let (_memory, manager) = memory().await;
    let key = "ends/gauge";
    let lock = || manager.lock(key).template(key);
    let guard = lock().acquire().await.expect("the lock is free");
    let waiter = tokio::spawn(lock().acquire());
    settle().await;
    let late = PrometheusBuilder::new().build_recorder();
    {
        let _installed = metrics::set_default_local_recorder(&late);
        drop(guard);
        drop(waiter.await.expect("no panic").expect("its turn comes"));
    }
    for gauge in ["dlock_waiting", "dlock_held"] {
        let now = collector().number(gauge, key, &[]);
        assert_eq!(now, Some(0.0), "{gauge}");
    }
    let scraped = late.handle().render();
    let waiting = format!("dlock_waiting{{template=\"{key}\",store=\"memory\"}}");
    assert!(!scraped.contains(&waiting), "{scraped}");
    let held = format!("dlock_held{{template=\"{key}\",store=\"memory\"}} 0\n");
    assert!(scraped.contains(&held), "{scraped}");
}

#[tokio::test(start_paused = true)]
async fn a_span_ends_with_its_lock_whoever_still_knows_the_lock() {
    let (memory, manager) = memory().await;
    let key = "ends/known";
    let known = manager.lock(key).run(async { dlock::current() }).await;
    let known = known.expect("the lock is free").expect("inside");
    assert!(!known.is_held());
    assert_eq!(collector().closed_spans(key).len(), 1);

    // The same of a lease that is lost.
    let key = "ends/known-lost";
    let mut known = None;
    let body = async {
        known = dlock::current();
        memory.faults().take_away(key);
        std::future::pending::<()>().await;
    };
    assert!(manager.lock(key).run(body).await.is_err());
    settle().await;
    assert_eq!(collector().closed_spans(key).len(), 1);
    drop(known);
}

#[tokio::test(start_paused = true)]
async fn the_span_of_a_caller_that_went_away_ends_though_its_place_is_kept() {
    let (memory, manager) = memory().await;
    let other = connect(Config::with_backend(memory)).await;
    let key = "ends/place";
    let guard = other.lock(key).template("ends/other").acquire().await;
    let guard = guard.expect("the lock is free");
    let lock = |template| manager.lock(key).template(template);
    let first = tokio::spawn(lock("ends/first").run(async {}));
    settle().await;
    let second = tokio::spawn(lock("ends/second").run(async {}));
    settle().await;
    first.abort();
    settle().await;
    let closed = collector().closed_spans(key);
    let closed: Vec<_> = closed.iter().map(|span| span.span("template")).collect();
    assert_eq!(closed, ["ends/first"]);
    drop(guard);
    second.await.expect("no panic").expect("its turn comes");
}
