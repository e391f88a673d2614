//! What was done, as it stands beside the queue of its lock.

use dlock_conformance::Store as _;

use crate::EtcdStore;
use crate::harness::{connect, lease_of};
use crate::support::locks::{free, had, held, is_unavailable, says};
use crate::support::wait::{HANG, within};

/// What it was attached to goes with it, and not only when its time has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_what_is_forgotten() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let guard = held(manager.lock("key").once(10 * HANG)).await;
    guard.release_done().await.expect("the release");
    let mark = format!("{}//key", store.prefix);
    let lease = lease_of(&store.server, &mark).await;
    let leases = async || store.server.control(&["lease", "list"]).await;
    assert!(leases().await.contains(&lease));
    assert!(manager.forget("key").await.expect("forget"));
    assert!(!leases().await.contains(&lease), "{lease}");
    free(&manager, "key").await;
}

/// It is told apart from a mark, and kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_in_the_place_of_a_mark_is_named() {
    let store = EtcdStore::start().await;
    let manager = connect(&store.url()).await;
    let name = format!("{}//key", store.prefix);
    let put = ["put", &*name, "somebody's own"];
    store.server.control(&put).await;
    for refused in [
        within(HANG, manager.lock("key").try_acquire())
            .await
            .map(drop),
        within(HANG, manager.lock("key").acquire()).await.map(drop),
        within(HANG, manager.forget("key")).await.map(drop),
    ] {
        says(&is_unavailable(refused), &[&name, "did not write"]);
    }
    assert!(manager.list("").await.expect("list").is_empty());
    let kept = store.server.control(&["get", &name]).await;
    assert!(kept.contains("somebody's own"), "{kept}");
    store.server.control(&["del", &name]).await;
    had(&manager, "key").await;
}
