//! What goes wrong with sessions, ephemeral nodes and watches.

use std::time::{Duration, Instant};

use dlock::backend::zookeeper_client::Error;
use dlock::{LockError, LockManager};
use tokio::time::sleep;

use crate::harness::{Scene, config, connect, had, healed, is_busy, waited_for};
use crate::support::polls::{Polled, drop_at_poll, drop_outside, outlive_runtime};
use crate::support::wait::{HANG, eventually, until, within};

/// A session that outlives what the test does to its connection.
const LONG: &str = "30s";

/// One that ends within the test.
const SHORT: &str = "2s";

/// A server that is slow to begin with is asked again, for as long as a call may
/// take: only what refuses at once is given up at once.
#[tokio::test]
async fn a_server_that_is_silent_at_first_is_asked_again() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    proxy.stall(true);
    let patient = config(&scene.url_through(&proxy, SHORT)).request_timeout(HANG);
    let connecting = tokio::spawn(LockManager::connect(patient));
    let again = async || (proxy.accepted() > 1 || connecting.is_finished()).then_some(());
    eventually("it is asked again", again).await;
    proxy.stall(false);
    let manager = within(HANG, connecting).await.expect("no panic");
    had(&manager.expect("a connection"), "key").await;
}

/// The node was made, and nobody was told: it is found by its name, and not made
/// a second time.
#[tokio::test]
async fn a_creation_whose_reply_was_lost_is_found_again() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    had(&manager, "key").await;

    proxy.swallow_replies(true);
    let taking = tokio::spawn(manager.lock("key").acquire());
    scene.has_nodes("key", 1).await;
    // The connection breaks, and the session goes on over another.
    proxy.swallow_replies(false);
    let guard = within(HANG, taking)
        .await
        .expect("no panic")
        .expect("the lock");
    assert_eq!(scene.nodes("key").await.len(), 1);
    is_busy(manager.lock("key").try_acquire().await);
    guard.release().await.expect("the release");
    assert_eq!(scene.nodes("key").await.len(), 0);
}

/// The same, but nobody wants it any more when the session goes on.
#[tokio::test]
async fn a_creation_that_was_given_up_leaves_nothing() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    had(&manager, "key").await;

    proxy.swallow_replies(true);
    let taking = tokio::spawn(manager.lock("key").acquire());
    scene.has_nodes("key", 1).await;
    taking.abort();
    assert_eq!(scene.nodes("key").await.len(), 1);
    proxy.swallow_replies(false);
    scene.has_nodes("key", 0).await;
}

/// Sent, but not yet arrived when it is given up: it must not come later and
/// lock the key for nobody.
#[tokio::test]
async fn a_creation_that_arrives_after_it_was_given_up_leaves_nothing() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    let other = connect(&scene.url()).await;
    had(&manager, "key").await;

    proxy.stall(true);
    let given_up = manager
        .lock("key")
        .acquire_within(Duration::from_millis(200));
    let error = within(HANG, given_up).await.expect_err("a silent server");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    proxy.stall(false);
    // Behind it, on the same session.
    had(&manager, "another").await;
    had(&other, "key").await;
    scene.has_nodes("key", 0).await;
}

/// The same request has a node of an earlier session, which the server has not
/// ended yet. It ends with that session, so it is not taken for the one whose
/// creation was not answered.
#[tokio::test]
async fn a_node_of_another_session_is_not_taken_for_our_own() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    had(&manager, "key").await;

    proxy.swallow_replies(true);
    let taking = tokio::spawn(manager.lock("key").acquire());
    scene.has_nodes("key", 1).await;
    let own = scene.nodes("key").await.remove(0);
    let earlier = scene.server.client().await;
    let older = scene.make_like(&earlier, "key", &own).await;
    // Only the other one is left: the creation has to be repeated.
    scene.delete("key", &own).await;
    proxy.swallow_replies(false);
    scene.has_nodes("key", 2).await;
    assert!(!taking.is_finished(), "it waits for the other session");
    scene.delete("key", &older).await;
    let guard = within(HANG, taking)
        .await
        .expect("no panic")
        .expect("the lock");
    assert_eq!(scene.nodes("key").await.len(), 1);
    guard.release().await.expect("the release");
    assert_eq!(scene.nodes("key").await.len(), 0);
}

/// The same, but nobody wants it any more: its own node is deleted, and not one
/// of the earlier session.
#[tokio::test]
async fn what_was_given_up_is_told_from_a_node_of_another_session() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    had(&manager, "key").await;

    proxy.swallow_replies(true);
    let taking = tokio::spawn(manager.lock("key").acquire());
    scene.has_nodes("key", 1).await;
    let own = scene.nodes("key").await.remove(0);
    let earlier = scene.server.client().await;
    let mut others = Vec::new();
    // The server lists nodes in no order.
    for _ in 0..8 {
        others.push(scene.make_like(&earlier, "key", &own).await);
    }
    taking.abort();
    proxy.swallow_replies(false);
    scene.has_nodes("key", others.len()).await;
    assert_eq!(scene.nodes("key").await, others);
}

/// The caller's runtime ends, and what was asked there is dropped much later, by
/// a thread without any. What it has left is given back by the manager's own.
#[tokio::test]
async fn dropped_at_every_poll_outside_of_a_runtime() {
    const PATIENCE: Duration = Duration::from_millis(200);
    let scene = Scene::set().await;
    let (manager, other) = (connect(&scene.url()).await, connect(&scene.url()).await);
    for polls in 1.. {
        let request = Box::pin(manager.lock("key").acquire());
        let (ended, request) = outlive_runtime(request, polls, HANG).await;
        let done = matches!(ended, Polled::Done(Ok(_)));
        assert!(done || matches!(ended, Polled::Dropped), "{ended:?}");
        drop_outside((ended, request));
        scene.has_nodes("key", 0).await;
        if done {
            break;
        }
    }
    for polls in 1.. {
        let guard = other.lock("key").acquire().await.expect("the lock");
        let request = Box::pin(manager.lock("key").acquire());
        let (ended, request) = outlive_runtime(request, polls, PATIENCE).await;
        let waits = matches!(ended, Polled::Waiting);
        assert!(waits || matches!(ended, Polled::Dropped), "{ended:?}");
        // The turn of one who does not look any more.
        guard.release().await.expect("the release");
        if waits {
            scene.has_nodes("key", 1).await;
        }
        drop_outside(request);
        scene.has_nodes("key", 0).await;
        if waits {
            break;
        }
    }
}

/// The lock went back, and nobody was told.
#[tokio::test]
async fn a_deletion_whose_reply_was_lost_is_a_release() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    let guard = manager.lock("key").acquire().await.expect("the lock");

    proxy.swallow_replies(true);
    let releasing = tokio::spawn(guard.release());
    scene.has_nodes("key", 0).await;
    proxy.swallow_replies(false);
    within(HANG, releasing)
        .await
        .expect("no panic")
        .expect("it was released");
}

/// A session keeps its nodes for as long as it lives. One that could not be
/// deleted in its lease's time is deleted later.
#[tokio::test]
async fn a_deletion_that_failed_is_made_up_for_after_the_ttl() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    let ttl = Duration::from_millis(300);
    for release in [true, false] {
        let guard = manager.lock("key").ttl(ttl).acquire().await;
        let guard = guard.expect("the lock");
        proxy.refuse(true);
        within(HANG, guard.lost()).await;
        if release {
            drop(guard);
        } else {
            std::mem::forget(guard);
        }
        sleep(2 * ttl).await;
        assert_eq!(scene.nodes("key").await.len(), 1, "the session lives");
        proxy.refuse(false);
        scene.has_nodes("key", 0).await;
        healed(&manager).await;
    }
}

/// The server removes folders in which nothing is left. It may do so at any
/// moment, also between the making of a folder and that of a node in it.
#[tokio::test]
async fn folders_that_vanish_are_made_again() {
    let scene = Scene::set().await;
    let manager = connect(&scene.url()).await;
    let client = scene.server.client().await;
    let folder = format!("{}/key", scene.root);
    let mut last = None;
    for _ in 0..5 {
        let guard = manager.lock("key").acquire().await.expect("the lock");
        // A new folder counts its nodes from the first number.
        assert!(scene.nodes("key").await[0].ends_with("-lock-0000000001"));
        assert!(last < Some(guard.token()));
        last = Some(guard.token());
        guard.release().await.expect("the release");
        eventually("the folder is removed", async || {
            let there = client.check_stat(&folder).await.expect("an answer");
            there.is_none().then_some(())
        })
        .await;
    }
    // And under everybody's feet.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(1) {
        match client.delete(&folder, None).await {
            Ok(()) | Err(Error::NoNode | Error::NotEmpty) => {}
            Err(error) => panic!("{error}"),
        }
        had(&manager, "key").await;
    }
}

/// The server never removes a folder in which nothing has ever been. So a request
/// that is dropped between the making of its folder and that of its node must not
/// leave one.
#[tokio::test]
async fn a_folder_whose_maker_is_dropped_vanishes() {
    let scene = Scene::set().await;
    let manager = connect(&scene.url()).await;
    let client = scene.server.client().await;
    let kept = manager.lock("kept").acquire().await.expect("the lock");
    for polls in 1.. {
        let request = manager.lock(format!("key:{polls}")).acquire();
        let ended = drop_at_poll(request, polls, HANG).await;
        if let Polled::Done(guard) = &ended {
            assert!(guard.is_ok(), "{guard:?}");
            break;
        }
        assert!(matches!(ended, Polled::Dropped), "{ended:?}");
    }
    let left = async || client.list_children(&scene.root).await;
    let others = |left: &Result<Vec<String>, _>| matches!(left, Ok(names) if names == &["kept"]);
    until("nothing is left", left, others)
        .await
        .expect("the folder of all locks");
    drop(kept);
}

/// A holder that is cut off knows its end before anybody else gets in, although
/// its ttl is long: the session does not last as long.
#[tokio::test]
async fn a_lease_ends_before_its_session_can() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, SHORT)).await;
    let other = connect(&scene.url()).await;
    let guard = manager.lock("key").acquire().await.expect("the lock");
    let next = tokio::spawn(other.lock("key").acquire());
    waited_for(&other, "key", 1).await;

    proxy.stall(true);
    let next = within(HANG, next)
        .await
        .expect("no panic")
        .expect("the lock");
    assert!(!guard.is_held(), "held by two");
    assert!(next.token() > guard.token());
    let error = within(HANG, guard.release())
        .await
        .expect_err("a lost lease");
    assert!(matches!(error, LockError::Lost { .. }), "{error:?}");

    // A session of the next time is opened by itself.
    proxy.stall(false);
    healed(&manager).await;
    assert!(next.is_held());
    is_busy(manager.lock("key").try_acquire().await);
    next.release().await.expect("its own lease");
    had(&manager, "key").await;
}

/// All locks of a session end with it, and each holder is told.
#[tokio::test]
async fn the_end_of_a_session_is_told_to_all_holders() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    // The server hears nothing for longer than the session lasts; the process
    // learns it from the server.
    let manager = connect(&scene.url_through(&proxy, SHORT)).await;
    let mut guards = Vec::new();
    for number in 0..10 {
        let request = manager.lock(format!("key:{number}")).renew(false);
        guards.push(request.acquire().await.expect("the lock"));
    }
    proxy.refuse(true);
    for number in 0..10 {
        scene.has_nodes(&format!("key:{number}"), 0).await;
    }
    proxy.refuse(false);
    for guard in &guards {
        within(HANG, guard.lost()).await;
        assert!(!guard.is_held());
    }
    drop(guards);
    healed(&manager).await;
}

/// A waiter whose session has ended asks again, with the next.
#[tokio::test]
async fn a_waiter_outlives_its_session() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let other = connect(&scene.url()).await;
    let url = scene.url_through(&proxy, SHORT);
    let patient = config(&url).request_timeout(HANG);
    let manager = LockManager::connect(patient).await.expect("a connection");
    let guard = other.lock("key").acquire().await.expect("the lock");
    let waiting = tokio::spawn(manager.lock("key").acquire());
    waited_for(&other, "key", 1).await;
    proxy.refuse(true);
    waited_for(&other, "key", 0).await;
    proxy.refuse(false);
    waited_for(&other, "key", 1).await;
    guard.release().await.expect("the release");
    let guard = within(HANG, waiting)
        .await
        .expect("no panic")
        .expect("the lock");
    guard.release().await.expect("the release");
}

/// What was released while the waiter had no connection is told once it has one.
#[tokio::test]
async fn a_release_behind_a_waiters_back_wakes_it() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let other = connect(&scene.url()).await;
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    let guard = other.lock("key").acquire().await.expect("the lock");
    let waiting = tokio::spawn(manager.lock("key").acquire());
    waited_for(&other, "key", 1).await;
    proxy.refuse(true);
    guard.release().await.expect("the release");
    proxy.refuse(false);
    let guard = within(HANG, waiting)
        .await
        .expect("no panic")
        .expect("the lock");
    guard.release().await.expect("the release");
}

/// Somebody deletes the node of one who waits: it has lost its place, and takes
/// another.
#[tokio::test]
async fn a_waiter_whose_node_is_deleted_is_served_all_the_same() {
    let scene = Scene::set().await;
    let (holder, other) = (connect(&scene.url()).await, connect(&scene.url()).await);
    let guard = holder.lock("key").acquire().await.expect("the lock");
    let waiting = tokio::spawn(other.lock("key").acquire());
    waited_for(&holder, "key", 1).await;
    let waiter = scene.nodes("key").await.pop().expect("a waiter");
    scene.delete("key", &waiter).await;
    assert!(!waiting.is_finished());
    guard.release().await.expect("the release");
    let guard = within(HANG, waiting)
        .await
        .expect("no panic")
        .expect("the lock");
    let nodes = scene.nodes("key").await;
    assert!(nodes.len() == 1 && nodes[0] != waiter, "{nodes:?}");
    guard.release().await.expect("the release");
}

/// The queue is one, and in its order.
#[tokio::test]
async fn readers_and_writers_are_let_in_as_they_came() {
    let scene = Scene::set().await;
    let manager = connect(&scene.url()).await;
    let reader = manager
        .lock("key")
        .read()
        .acquire()
        .await
        .expect("the lock");
    let process = async || connect(&scene.url()).await;
    let (first, second, third) = (process().await, process().await, process().await);
    let writes = tokio::spawn(first.lock("key").acquire());
    waited_for(&manager, "key", 1).await;
    let reads = [
        tokio::spawn(second.lock("key").read().acquire()),
        tokio::spawn(third.lock("key").read().acquire()),
    ];
    waited_for(&manager, "key", 3).await;
    // Who reads does not overtake who waits to write.
    is_busy(manager.lock("key").read().try_acquire().await);
    reader.release().await.expect("the release");
    let writer = within(HANG, writes)
        .await
        .expect("no panic")
        .expect("the lock");
    waited_for(&manager, "key", 2).await;
    assert!(reads.iter().all(|read| !read.is_finished()));
    writer.release().await.expect("the release");
    let mut readers = Vec::new();
    for read in reads {
        let reader = within(HANG, read).await.expect("no panic");
        readers.push(reader.expect("the lock"));
    }
}
