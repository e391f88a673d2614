//! What is listed where very many folders have nothing in them.

use crate::harness::{Scene, connect};
use crate::support::locks::held;
use crate::support::zookeeper::make;

/// More than are looked at in one question.
const FREE: usize = 450;

/// Their folders stay for a while, or for good.
#[tokio::test]
async fn locks_that_are_free_are_neither_listed_nor_counted() {
    let scene = Scene::set().await;
    let manager = connect(&scene.url()).await;
    let client = scene.server.client().await;
    for number in 0..FREE {
        make(&client, &format!("{}/free:{number}", scene.root)).await;
    }
    let guard = held(manager.lock(["a", "free:lock", "x", "y"])).await;
    let listed = manager.list_some("", 3).await.expect("a list");
    let keys: Vec<_> = listed.locks.iter().map(|lock| &*lock.key).collect();
    assert_eq!(
        (&keys[..], listed.others),
        (&["a", "free:lock", "x"][..], 1)
    );
    let listed = manager.list_some("free:", 1).await.expect("a list");
    assert_eq!((&*listed.locks[0].key, listed.others), ("free:lock", 0));
    let all = manager.list("").await.expect("a list");
    assert_eq!(all.len(), 4);
    guard.release().await.expect("held");
    let listed = manager.list_some("", 3).await.expect("a list");
    assert_eq!((listed.locks.len(), listed.others), (0, 0));
}
