//! A waiter that an operator takes out of the queue is told by a node, and nothing is left.

use std::time::Duration;

use dlock::LockManager;

use crate::harness::{Scene, config, connect};
use crate::support::locks::{self, had, held, is_taken_out, served, shown};
use crate::support::wait::{HANG, within};

/// Taken out by its place: the owner.
async fn first_waiter(manager: &LockManager) -> String {
    shown(manager, "key").await.queue[0].owner.clone()
}

/// Who waits for permits watches the folder, and no node of it.
#[tokio::test]
async fn one_who_waits_for_permits_is_taken_out() {
    let scene = Scene::set().await;
    let (manager, operator) = (connect(&scene.url()).await, connect(&scene.url()).await);
    let permit = |manager: &LockManager| manager.lock("key").permits(2);
    let both = [held(permit(&operator)).await, held(permit(&operator)).await];
    let waiting = tokio::spawn(permit(&manager).acquire());
    scene.has_nodes("key", 3).await;
    let owner = first_waiter(&operator).await;
    let out = within(HANG, operator.break_waiter("key", &owner)).await;
    assert!(out.expect("it waits").is_some());
    is_taken_out(within(HANG, waiting).await.expect("no panic"));
    assert_eq!(scene.nodes("key").await.len(), 2, "nothing is left");
    assert!(both.iter().all(dlock::LockGuard::is_held));
    drop(both);
    had(&manager, "key").await;
}

/// A process that does not come keeps nobody up: its place is taken without it, and when it
/// comes again, it queues.
#[tokio::test]
async fn one_that_does_not_come_loses_its_place() {
    let scene = Scene::set().await;
    let operator =
        locks::connect(config(&scene.url()).request_timeout(Duration::from_secs(2))).await;
    let proxy = scene.proxy();
    // Nobody tells it meanwhile that the store is silent.
    let patient = config(&scene.url_through(&proxy, "30s")).request_timeout(HANG);
    let manager = locks::connect(patient).await;
    let guard = held(operator.lock("key").read()).await;
    let waiting = tokio::spawn(manager.lock("key").acquire());
    scene.has_nodes("key", 2).await;
    let behind = tokio::spawn(connect(&scene.url()).await.lock("key").read().acquire());
    scene.has_nodes("key", 3).await;

    proxy.stall(true);
    let owner = first_waiter(&operator).await;
    let out = within(HANG, operator.break_waiter("key", &owner)).await;
    assert!(out.expect("it waits").is_some());
    // Here and now, and not when its session ends.
    assert_eq!(scene.nodes("key").await.len(), 2, "its place is there");
    // The reader behind it shares.
    served(behind).await.release().await.expect("held");
    assert_eq!(scene.nodes("key").await.len(), 1, "nothing is left");

    proxy.stall(false);
    scene.has_nodes("key", 2).await;
    guard.release().await.expect("held");
    served(waiting).await.release().await.expect("held");
}
