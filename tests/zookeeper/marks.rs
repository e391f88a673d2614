//! What was done is remembered by nodes that the server ends, where it has such nodes.

use std::time::Duration;

use dlock::request::Once;
use dlock::{LockError, LockManager, LockRequest};
use zookeeper_client::{Acls, CreateMode, Error};

use crate::harness::{Scene, connect};
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{had, held, is_done, is_unsupported, says, shown};
use crate::support::log::Log;
use crate::support::polls::{Polled, drop_at_poll};
use crate::support::wait::{HANG, eventually, within};
use crate::support::zookeeper::{Setup, make, nodes};

const LONG: Duration = Duration::from_secs(3600);

fn once(manager: &LockManager, time: Duration) -> LockRequest<Once> {
    manager.lock("key").once(time)
}

/// As they come, servers have no nodes that end after a time; and to find that out leaves
/// nothing.
#[tokio::test]
async fn a_server_without_nodes_that_end_refuses_it() {
    for extended in [false, true] {
        let setup = Setup::default();
        let setup = if extended { setup.extended() } else { setup };
        let server = setup.start().await;
        let manager = connect(&format!("zookeeper://127.0.0.1:{}/test", server.port())).await;
        let client = server.client().await;
        let root = client.count_descendants_number("/test").await;
        assert!(matches!(root, Err(Error::NoNode)), "{root:?}");
        assert_eq!(manager.capabilities().once, extended);
        let asked = within(HANG, once(&manager, LONG).acquire()).await;
        if extended {
            asked.expect("it is free").release().await.expect("held");
        } else {
            let set = "zookeeper.extendedTypesEnabled=true";
            says(&is_unsupported(asked), &["`key`", "once", set]);
            says(&is_unsupported(manager.forget("key").await), &[set]);
        }
        had(&manager, "key").await;
    }
}

/// The leader removes it within a minute, and nobody has to wait for that.
#[tokio::test]
async fn a_mark_is_over_before_the_server_removes_it() {
    let server = Setup::default().extended().untidy().start().await;
    let manager = connect(&format!("zookeeper://127.0.0.1:{}/test", server.port())).await;
    let client = server.client().await;
    let time = Duration::from_secs(3);
    let attempt = async || {
        let guard = held(once(&manager, time)).await;
        guard.release_done().await.expect("the mark");
        is_done(within(HANG, manager.lock("key").try_acquire()).await);
        assert_eq!(nodes(&client, "/test/key").await.len(), 1, "the mark");
        let guard = eventually("it is over", async || {
            match manager.lock("key").try_acquire().await {
                Ok(guard) => Some(guard),
                Err(LockError::Done { .. }) => None,
                Err(error) => panic!("{error:?}"),
            }
        })
        .await;
        // Who found it over has removed it.
        let left = nodes(&client, "/test/key").await;
        assert!(!left.iter().any(|name| name.contains("done")), "{left:?}");
        let seen = shown(&manager, "key").await;
        assert!(seen.done.is_none() && seen.holders.len() == 1);
        guard.release().await.expect("held");
    };
    unless_it_stands_still(time / 4, attempt).await;
}

/// What nobody asks for again goes by itself.
#[tokio::test]
async fn the_server_removes_a_mark_that_is_over() {
    let scene = Scene::set().await;
    let manager = connect(&scene.url()).await;
    let guard = held(once(&manager, Duration::from_millis(1))).await;
    guard.release_done().await.expect("the mark");
    scene.has_nodes("key", 0).await;
}

/// A mark by hand is one too, until an operator takes it back.
#[tokio::test]
async fn what_an_operator_has_marked_is_done() {
    let scene = Scene::set().await;
    let manager = connect(&scene.url()).await;
    let client = scene.server.client().await;
    make(&client, &format!("{}/key", scene.root)).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let path = format!("{}/key/~done-by-hand", scene.root);
    client
        .create(&path, b"by hand", &options)
        .await
        .expect("a node");
    is_done(within(HANG, manager.lock("key").try_acquire()).await);
    let done = shown(&manager, "key").await.done.expect("it is done");
    assert_eq!((&*done.owner, done.expires_in), ("by hand", None));
    assert!(manager.forget("key").await.expect("forget"));
    had(&manager, "key").await;
}

/// Any of very many is the one that lasts: all of them are read.
#[tokio::test]
async fn one_mark_of_very_many_is_seen() {
    /// More than twice as many as are read at a time.
    const OVER: usize = 900;
    let scene = Scene::set().await;
    let manager = connect(&scene.url()).await;
    let client = scene.server.client().await;
    let folder = format!("{}/key", scene.root);
    make(&client, &folder).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let mark = async |name: &str, text: &str| {
        let path = format!("{folder}/~done-{name}");
        let made = client.create(&path, text.as_bytes(), &options).await;
        made.expect("a node");
    };
    for number in 0..OVER {
        mark(&number.to_string(), "1 over").await;
    }
    // At either end of what the server lists, and between.
    let mut places = [false; 3];
    for number in 0.. {
        let name = format!("lasts-{number}");
        mark(&name, "3600000 lasts").await;
        let listed = client.list_children(&folder).await.expect("the marks");
        let place = listed.iter().position(|listed| listed.ends_with(&name));
        let met = &mut places[place.expect("it is there") * 3 / listed.len()];
        if !std::mem::replace(met, true) {
            let done = shown(&manager, "key").await.done.expect("it is done");
            assert_eq!(done.owner, "lasts", "{place:?}");
        }
        if places.iter().all(|&met| met) {
            break;
        }
        let path = format!("{folder}/~done-{name}");
        client.delete(&path, None).await.expect("our own node");
    }
}

/// Its lock is free all the same, and who has done it is told.
#[tokio::test]
async fn a_server_that_makes_no_such_nodes_any_more_gets_the_lock_back() {
    let mut server = Setup::default().extended().start().await;
    let url = format!("zookeeper://127.0.0.1:{}/test", server.port());
    let manager = connect(&format!("{url}?session_timeout=60s")).await;
    let guard = held(once(&manager, LONG).ttl(Duration::from_secs(60))).await;
    server.restart_not_extended().await;
    let released = within(HANG, guard.release_done()).await;
    let set = "zookeeper.extendedTypesEnabled=true";
    says(&is_unsupported(released), &["`key`", set]);
    had(&manager, "key").await;
    // It is not tried again until the lease ends.
    within(HANG / 10, manager.shutdown()).await;
}

/// The transaction is on its way when its caller leaves, and the background sends the release
/// anew. It finds its own mark, and nothing is told that did not happen.
#[tokio::test]
async fn a_caller_that_leaves_at_any_poll_leaves_its_mark() {
    let warnings = Log::warnings();
    let scene = Scene::set().await;
    let other = connect(&scene.url()).await;
    for polls in 1.. {
        let manager = connect(&scene.url()).await;
        let key = format!("left-at-{polls}");
        let guard = held(manager.lock(&key).once(LONG)).await;
        let ended = drop_at_poll(guard.release_done(), polls, HANG).await;
        within(HANG, manager.shutdown()).await;
        is_done(within(HANG, other.lock(&key).try_acquire()).await);
        let said = warnings.lines_with(&key);
        assert!(said.is_empty(), "{said:#?}");
        match ended {
            Polled::Done(answer) => return answer.expect("the mark"),
            Polled::Dropped => {}
            Polled::Waiting => panic!("an answer comes"),
        }
    }
}
