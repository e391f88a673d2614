//! A lock that was given to a call which is not polled: until it is passed on,
//! it counts as held.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use dlock::{Config, LockManager};

use crate::collector::collector;
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;
use crate::{memory, ms, settle};

fn held(template: &'static str, store: &'static str) -> Option<f64> {
    collector().metric("dlock_held", &[("template", template), ("store", store)])
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_that_nobody_comes_for_counts_as_held() {
    let (_memory, manager) = memory().await;
    let key = "unclaimed/hand-over";
    let guard = manager.lock(key).acquire().await.expect("free");
    let first = tokio::spawn(manager.lock(key).run(async {}));
    settle().await;
    let mut sleepy = pin!(manager.lock(key).template(key).acquire());
    let polled = poll_fn(|context| Poll::Ready(sleepy.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    guard.release().await.expect("held");
    first.await.expect("no panic").expect("its turn comes");
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(held(key, "memory"), Some(1.0));
    assert_eq!(manager.list(key).await.expect("answers").len(), 1);
    tokio::time::sleep(ms(2_500)).await;
    assert_eq!(held(key, "memory"), Some(0.0));
    assert!(manager.list(key).await.expect("answers").is_empty());
    let told = collector().of_target(key, "dlock::handover");
    let warnings: Vec<_> = told.iter().filter(|line| line.level() == "WARN").collect();
    assert_eq!(warnings.len(), 1, "{told:#?}");
    // It comes after all.
    let guard = sleepy.await.expect("free");
    assert_eq!(held(key, "memory"), Some(1.0));
    guard.release().await.expect("held");
    assert_eq!(held(key, "memory"), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn a_place_that_nobody_comes_for_counts_as_held_once_it_is_granted() {
    let (memory, manager) = memory().await;
    let other = LockManager::connect(Config::with_backend(memory))
        .await
        .expect("memory connects");
    let key = "unclaimed/place";
    let guard = other.lock(key).acquire().await.expect("free");
    let mut sleepy = pin!(manager.lock(key).template(key).acquire());
    let polled = poll_fn(|context| Poll::Ready(sleepy.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(held(key, "memory"), None, "it is the other's");
    guard.release().await.expect("held");
    tokio::time::sleep(ms(1_500)).await;
    assert_eq!(held(key, "memory"), Some(1.0));
    tokio::time::sleep(ms(2_500)).await;
    assert_eq!(held(key, "memory"), Some(0.0));
    sleepy.await.expect("free").release().await.expect("held");
}

#[tokio::test]
async fn a_grant_that_nobody_comes_for_counts_as_held() {
    collector();
    let server = RedisServer::start().await;
    let config = Config::from_url(&server.url()).expect("a valid URL");
    let manager = LockManager::connect(config).await.expect("it answers");
    let key = "unclaimed/redis";
    // So that there is a connection.
    let first = manager.lock(key).run(async {}).await;
    first.expect("the lock is free");
    let mut sleepy = pin!(manager.lock(key).template(key).acquire());
    let polled = poll_fn(|context| Poll::Ready(sleepy.as_mut().poll(context))).await;
    assert!(polled.is_pending());
    for number in [1.0, 0.0] {
        eventually("it is shown as it is", async || {
            (held(key, "redis") == Some(number)).then_some(())
        })
        .await;
    }
    assert!(manager.list("").await.expect("answers").is_empty());
    sleepy.await.expect("free").release().await.expect("held");
}
