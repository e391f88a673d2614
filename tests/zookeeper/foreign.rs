//! What somebody else has put into dlock's folders: nodes of any name, with any data. What
//! has the name of a request has its place in the queue; all else is passed over; and
//! everything stays as it was.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use tokio::runtime::Runtime;
use zookeeper_client::{Acls, CreateMode};

use crate::harness::{Scene, config, connect};
use crate::property::{holds_within, is_of_others, told_of};
use crate::support::locks;
use crate::support::wait::{HANG, within};
use crate::support::zookeeper::{make, nodes};

fn name() -> impl Strategy<Value = String> {
    let pieces = select(
        &[
            "x",
            "lock-",
            "read-lock-",
            "__WRIT__",
            "__READ__",
            "_c_",
            "-",
            "0000000001",
            "2147483647",
            "-2147483648",
            "lease",
            "%",
            "%2F",
            "%ff",
            " ",
            "é",
            "\u{202e}",
            "config",
            "99999999999999999999",
        ][..],
    );
    vec(pieces, 1..5).prop_map(|pieces| pieces.concat())
}

/// Where it stands: beside the locks, or among the requests for one.
async fn is_told_and_kept(beside: bool, name: &str, data: &[u8]) -> TestCaseResult {
    let scene = Scene::set().await;
    let client = scene.server.client().await;
    let folder = if beside {
        scene.root.clone()
    } else {
        format!("{}/key", scene.root)
    };
    make(&client, &folder).await;
    let path = format!("{folder}/{name}");
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client
        .create(&path, data, &options)
        .await
        .expect("our own server");
    let manager = connect(&scene.url()).await;
    if beside {
        let tried = within(HANG, manager.lock("key").try_acquire()).await;
        prop_assert!(tried.is_ok(), "{:?}", tried);
    }
    let mut told = told_of(&manager, "key").await?;
    told.extend(told_of(&manager, "other").await?);
    for error in told {
        let of_others = is_of_others(&error);
        prop_assert!(of_others, "{}", error);
    }
    let (kept, stat) = client.get_data(&path).await.expect("our own server");
    prop_assert!(kept == data && stat.version == 0, "it was changed");
    Ok(())
}

#[test]
fn what_is_not_ours_is_passed_over_and_kept() {
    let runtime = Runtime::new().expect("a runtime");
    // It stays for all cases.
    let _shared = runtime.block_on(Scene::set());
    let input = (any::<bool>(), name(), vec(any::<u8>(), 0..2_000));
    holds_within(HANG, 12, input, async |(beside, name, data)| {
        is_told_and_kept(beside, &name, &data).await
    });
}

/// Curator's nodes, and those of others that look alike, are shown by their names, which are
/// of any text.
#[tokio::test]
async fn a_name_that_does_something_to_a_terminal_is_shown_escaped() {
    let case = is_told_and_kept(false, "\u{202e}lock-0000000001", b"");
    case.await.expect("it is plain");
}

/// Who holds a lock and who waits, as another client reads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_holds_a_lock_is_seen_by_another_client() {
    let scene = Scene::set().await;
    let called = async |label| locks::connect(config(&scene.url()).label(label)).await;
    let (holder, other) = (called("orders").await, called("reports").await);
    let guard = locks::held(holder.lock("key")).await;
    let waiting = tokio::spawn(other.lock("key").acquire());
    locks::queued(&holder, "key", 1).await;
    let seen = locks::shown(&holder, "key").await;
    let [folder] = &seen.stored_as[..] else {
        panic!("one folder: {seen:?}")
    };
    let client = scene.server.client().await;
    let places = nodes(&client, folder).await;
    assert_eq!(places.len(), 2, "{places:?}");
    let process = seen.holders[0].process.as_ref().expect("a process");
    for (place, label) in places.iter().zip(["orders", "reports"]) {
        let read = client.get_data(&format!("{folder}/{place}")).await;
        let (data, _) = read.expect("our own server");
        let data = String::from_utf8_lossy(&data);
        let said = format!("@{},{},{label},", process.host, std::process::id());
        assert!(data.contains(&said), "{place}: {data}");
    }
    guard.release().await.expect("the release");
    drop(locks::served(waiting).await);
}

/// Without the floor, nobody knows which tokens are high enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_in_the_place_of_the_floor_is_named() {
    let scene = Scene::set().await;
    let client = scene.server.client().await;
    make(&client, &scene.root).await;
    let floor = format!("{}/%token-floor", scene.root);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let created = client.create(&floor, b"high", &options).await;
    created.expect("our own server");
    let manager = connect(&scene.url()).await;
    for refused in [
        within(HANG, manager.lock("key").try_acquire()).await,
        within(HANG, manager.lock("key").acquire()).await,
    ] {
        let error = locks::is_misconfigured(refused.map(drop));
        locks::says(&error, &[&floor, "did not write"]);
    }
    let deleted = client.delete(&floor, None).await;
    deleted.expect("our own server");
    locks::had(&manager, "key").await;
}
