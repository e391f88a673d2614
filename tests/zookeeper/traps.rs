//! What goes wrong with sessions, ephemeral nodes and watches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock::{LockError, LockGuard, LockManager};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use zookeeper_client::Error;

use crate::harness::{Scene, config, connect};
use crate::messages::{Asked, Counter, read_by};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{
    self, had, healed, held, held_at_last, is_busy, is_lost, queued, served,
};
use crate::support::polls::{Polled, drive_until, drop_at_poll};
use crate::support::proxy::Proxy;
use crate::support::wait::{HANG, eventually, until, within};
use crate::support::zookeeper::{Setup, make};

/// A session that outlives what the test does to its connection.
const LONG: &str = "30s";

/// One that ends within the test.
const SHORT: &str = "2s";

/// Also with a server that is silent for long: on a busy machine, a test may take a
/// while to get to what it does in that time.
async fn patient(url: &str) -> LockManager {
    locks::connect(config(url).request_timeout(HANG)).await
}

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

type Taking = JoinHandle<Result<LockGuard, LockError>>;

/// A request whose node was made, and the answer lost; and its manager, which lives on.
async fn unanswered(scene: &Scene) -> (LockManager, Proxy, Taking, String) {
    let proxy = scene.proxy();
    let manager = patient(&scene.url_through(&proxy, LONG)).await;
    // One that the server does not remove while it is empty.
    let folder = format!("{}/key", scene.root);
    make(&scene.server.client().await, &folder).await;
    had(&manager, "key").await;
    proxy.swallow_replies(true);
    let taking = tokio::spawn(manager.lock("key").acquire());
    scene.has_nodes("key", 1).await;
    let own = scene.nodes("key").await.remove(0);
    (manager, proxy, taking, own)
}

/// The same request has a node of an earlier session, which the server has not
/// ended yet. It ends with that session, so it is not taken for the one whose
/// creation was not answered.
#[tokio::test]
async fn a_node_of_another_session_is_not_taken_for_our_own() {
    let scene = Scene::set().await;
    let (_manager, proxy, taking, own) = unanswered(&scene).await;
    let earlier = scene.server.client().await;
    let older = scene.make_like(&earlier, "key", &own).await;
    // Only the other one is left: the creation has to be repeated.
    scene.delete("key", &own).await;
    proxy.swallow_replies(false);
    scene.has_nodes("key", 2).await;
    assert!(!taking.is_finished(), "it waits for the other session");
    scene.delete("key", &older).await;
    let guard = served(taking).await;
    assert_eq!(scene.nodes("key").await.len(), 1);
    guard.release().await.expect("the release");
    assert_eq!(scene.nodes("key").await.len(), 0);
}

/// The same, but nobody wants it any more: its own node is deleted, and not one
/// of the earlier session.
#[tokio::test]
async fn what_was_given_up_is_told_from_a_node_of_another_session() {
    let scene = Scene::set().await;
    let (_manager, proxy, taking, own) = unanswered(&scene).await;
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

/// The answer to a deletion was lost, and the server that is asked next is behind the
/// others: it goes on showing the node, and not the one that was before it.
#[tokio::test]
async fn a_node_that_was_given_back_holds_nothing() {
    let scene = Scene::set().await;
    let (proxy, client) = (scene.proxy(), scene.server.client().await);
    let manager = patient(&scene.url_through(&proxy, LONG)).await;
    // One that the server does not remove while it is empty: its numbers would begin anew.
    make(&client, &format!("{}/key", scene.root)).await;
    let guard = held(connect(&scene.url()).await.lock("key")).await;

    // Operation 2 is a deletion; its path has a length in front.
    let folder = format!("{}/key/", scene.root);
    let length = folder.len() + scene.nodes("key").await[0].len();
    let length = char::from(u8::try_from(length).expect("a short path"));
    proxy.hold_back(Some(&format!("\0\0\0\u{2}\0\0\0{length}{folder}")));
    let trying = tokio::spawn(manager.lock("key").try_acquire());
    until(
        "it gives its node back",
        async || proxy.holds_back(),
        |&is| is,
    )
    .await;
    let own = scene.nodes("key").await.remove(1);
    proxy.swallow_replies(true);
    proxy.hold_back(None);
    scene.has_nodes("key", 1).await;
    guard.release().await.expect("the release");
    let shown = folder + &own;
    make(&client, &shown).await;
    proxy.swallow_replies(false);
    is_busy(within(HANG, trying).await.expect("no panic"));
    client.delete(&shown, None).await.expect("what was shown");
    had(&manager, "key").await;
}

/// A session keeps its nodes for as long as it lives. One that could not be
/// deleted in its lease's time is deleted later.
#[tokio::test]
async fn a_deletion_that_failed_is_made_up_for_after_the_ttl() {
    let ttl = Duration::from_millis(300);
    unless_it_stands_still(ttl / 4, async || is_made_up_for(ttl).await).await;
}

async fn is_made_up_for(ttl: Duration) {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, LONG)).await;
    for release in [true, false] {
        // The server may be slower than that.
        let guard = held_at_last(|| manager.lock("key").ttl(ttl)).await;
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
        let guard = held(manager.lock("key")).await;
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
    let kept = held(manager.lock("kept")).await;
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
    // A quarter of the holder's session.
    unless_it_stands_still(Duration::from_millis(500), ends_before_its_session).await;
}

async fn ends_before_its_session() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let manager = connect(&scene.url_through(&proxy, SHORT)).await;
    let other = connect(&scene.url()).await;
    let guard = held(manager.lock("key")).await;
    let mut next = tokio::spawn(other.lock("key").acquire());
    drive_until(&mut next, queued(&other, "key", 1)).await;

    proxy.stall(true);
    let next = served(next).await;
    assert!(!guard.is_held(), "held by two");
    assert!(next.token() > guard.token());
    is_lost(within(HANG, guard.release()).await);

    // A session of the next time is opened by itself.
    proxy.stall(false);
    healed(&manager).await;
    assert!(next.is_held());
    is_busy(manager.lock("key").try_acquire().await);
    next.release().await.expect("its own lease");
    had(&manager, "key").await;
}

/// A waiter whose session has ended asks again, with the next.
#[tokio::test]
async fn a_waiter_outlives_its_session() {
    // A quarter of its session.
    unless_it_stands_still(Duration::from_millis(500), outlives_its_session).await;
}

async fn outlives_its_session() {
    let scene = Scene::set().await;
    let proxy = scene.proxy();
    let other = connect(&scene.url()).await;
    let manager = patient(&scene.url_through(&proxy, SHORT)).await;
    let guard = held(other.lock("key")).await;
    let waiting = tokio::spawn(manager.lock("key").acquire());
    queued(&other, "key", 1).await;
    proxy.refuse(true);
    queued(&other, "key", 0).await;
    proxy.refuse(false);
    queued(&other, "key", 1).await;
    guard.release().await.expect("the release");
    let guard = served(waiting).await;
    guard.release().await.expect("the release");
}

/// A waiter makes its node, lists the folder, watches the node before its own, lists once more,
/// and deletes its node. Together with the watch goes a look whether it was taken out, and
/// with each list the floor of the tokens: neither is a round trip more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_section_behind_another_is_five_round_trips() {
    unless_it_stands_still(Duration::from_millis(500), five_round_trips).await;
}

async fn five_round_trips() {
    const SECTIONS: u64 = 30;
    const CREATE: i32 = 15;
    /// Several reads as one: a list and the floor, or a look at what is waited for.
    const READ: i32 = 22;
    const WATCH: i32 = 4;
    const LOOK: i32 = 3;
    const DELETE: i32 = 2;
    const SIGN_OF_LIFE: i32 = 11;
    // Nobody else waits there for anything.
    let server = Setup::default().start().await;
    let counter = Arc::<Counter>::default();
    let port = read_by(Arc::clone(&counter), server.port()).await;
    let url = format!("zookeeper://127.0.0.1:{port}/?session_timeout=40s");
    let (manager, other) = (patient(&url).await, patient(&url).await);
    // From here on there is a folder.
    had(&manager, "key").await;
    counter.since_last();
    for _ in 0..SECTIONS {
        let guard = held(manager.lock("key")).await;
        let next = tokio::spawn(other.lock("key").run(async {}));
        let watches = async || server.number("zk_watch_count");
        until("it waits", watches, |&count| count == Some(1)).await;
        guard.release().await.expect("the release");
        served(next).await;
    }
    let mut asked = counter.since_last();
    asked.remove(&SIGN_OF_LIFE);
    // There are looks besides, as many as seconds have passed.
    let read = asked.remove(&READ).unwrap_or_default();
    assert!(read >= 3 * SECTIONS, "{read}");
    let of_both = [(CREATE, 2), (WATCH, 1), (LOOK, 1), (DELETE, 2)];
    let of_all = of_both.map(|(operation, times)| (operation, times * SECTIONS));
    assert_eq!(asked, Asked::from(of_all));
}
