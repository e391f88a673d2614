//! A waiter that an operator takes out of the queue is told by a node, and nothing is left.

use std::time::Duration;

use dlock::LockManager;

use zookeeper_client::{Acls, CreateMode};

use crate::harness::{Scene, config, connect};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{self, had, held, is_taken_out, served, shown};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, until, within};
use crate::support::zookeeper::{Setup, nodes};

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

/// One that has listed the folder before it was told, and watches behind that, misses the watch.
#[tokio::test]
async fn one_that_is_about_to_watch_is_told() {
    let scene = Scene::set().await;
    // It leaves the waiter the time to come.
    let operator = locks::connect(config(&scene.url()).request_timeout(HANG)).await;
    let proxy = scene.proxy();
    let patient = config(&scene.url_through(&proxy, "30s")).request_timeout(HANG);
    let manager = locks::connect(patient).await;
    let guard = held(operator.lock("key")).await;
    // It asks for nothing of that name before it watches it.
    let holder = scene.nodes("key").await.remove(0);
    proxy.hold_back(Some(&holder));
    let waiting = tokio::spawn(manager.lock("key").acquire());
    until("it watches", async || proxy.holds_back(), |&held| held).await;

    let owner = first_waiter(&operator).await;
    let (request, _) = owner.split_once("-lock-").expect("a node's name");
    let word = format!("{}/key/~out-{request}-", scene.root);
    let client = scene.server.client().await;
    let breaking = tokio::spawn(async move {
        let out = within(HANG, operator.break_waiter("key", &owner)).await;
        assert!(out.expect("it waits").is_some());
    });
    let told = async || client.check_stat(&word).await.expect("an answer");
    until("it is told", told, Option::is_some).await;
    proxy.hold_back(None);
    breaking.await.expect("no panic");
    guard.release().await.expect("held");
    is_taken_out(within(HANG, waiting).await.expect("no panic"));
}

/// A process that does not come keeps nobody up: its place is taken without it, and when it
/// comes again, it queues.
#[tokio::test]
async fn one_that_does_not_come_loses_its_place() {
    // The operator is soon tired of waiting, for the server too.
    unless_it_stands_still(Duration::from_millis(100), one_that_does_not_come).await;
}

async fn one_that_does_not_come() {
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

/// Another operator has told it first, and left before it came. So it knows nothing, and has
/// the lock when the time is over after which its place is taken without it.
#[tokio::test]
async fn one_that_was_let_in_meanwhile_keeps_its_lock() {
    unless_it_stands_still(Duration::from_secs(1), one_that_was_let_in).await;
}

async fn one_that_was_let_in() {
    let server = Setup::default().start().await;
    let client = server.client().await;
    let url = |port: u16| format!("zookeeper://127.0.0.1:{port}/dlock?session_timeout=30s");
    let manager = async |port: u16, timeout: Duration| {
        locks::connect(config(&url(port)).request_timeout(timeout)).await
    };
    let proxy = Proxy::to(server.port());
    let operator = manager(server.port(), Duration::from_secs(10)).await;
    let other = manager(proxy.port(), HANG).await;
    let guard = held(operator.lock("key")).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    let there = async || nodes(&client, "/dlock/key").await;
    until("it waits", there, |nodes| nodes.len() == 2).await;
    proxy.stall(true);
    let owner = first_waiter(&operator).await;
    let (request, _) = owner.split_once("-lock-").expect("a node's name");
    let word = format!("/dlock/key/~out-{request}-");
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    client.create(&word, b"", &options).await.expect("a node");

    let before = server.transactions();
    let breaking = tokio::spawn(async move { operator.break_waiter("key", &owner).await });
    let asked = async || server.transactions();
    until("it is told already", asked, |&asked| asked > before).await;
    client.delete(&word, None).await.expect("our own node");
    guard.release().await.expect("held");
    let out = within(HANG, breaking).await.expect("no panic");
    assert!(out.expect("an answer").is_none(), "it waits no more");
    assert_eq!(nodes(&client, "/dlock/key").await.len(), 1, "it has it");
    proxy.stall(false);
    served(waiting).await.release().await.expect("held");
}
