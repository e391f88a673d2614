//! Clients that close the connection in the middle of a request.

use serde_json::json;

use crate::client::Call;
use crate::on_each_store;
use crate::scene::{BLUE_MUG, SHELF, STOCK, Scene};
use crate::support::wait::until;

/// The lock goes back at once, not when its ttl has passed or the answer is
/// ready; the next one gets it, in this copy and in the other.
async fn while_it_holds(scene: Scene) {
    scene.shelf().close();
    let first = scene.start(0, BLUE_MUG);
    scene.shelf().came(1).await;
    let second = scene.start(1, BLUE_MUG);
    scene.waiting(SHELF, 1).await;

    first.hang_up().await;
    scene.shelf().came(2).await;
    second.hang_up().await;
    scene.all_locks_are_free().await;

    scene.shelf().open();
    assert_eq!(scene.place(0).await.status, 201);
    // Nobody has sold to those who have gone.
    assert_eq!(scene.blue_mugs_left().await, STOCK - 1);
}

/// It leaves the queue, and nothing is sold to it.
async fn while_it_waits(scene: Scene) {
    scene.shelf().close();
    let holder = scene.start(0, BLUE_MUG);
    scene.shelf().came(1).await;
    let gone = scene.start(1, BLUE_MUG);
    scene.waiting(SHELF, 1).await;
    gone.hang_up().await;
    scene.waiting(SHELF, 0).await;

    scene.shelf().open();
    assert_eq!(holder.answer().await.status, 201);
    scene.all_locks_are_free().await;
    scene.shelf().came(1).await;
    assert_eq!(scene.place(1).await.status, 201);
    assert_eq!(scene.blue_mugs_left().await, STOCK - 2);
}

/// A payment that has begun goes on under its lock, without a client.
async fn while_it_pays(scene: Scene) {
    let id = scene.place(0).await.body["id"].as_u64().expect("an id");
    scene.counter().close();
    let gone = scene.start(0, Call::Pay(id));
    scene.counter().came(1).await;
    gone.hang_up().await;

    for copy in [0, 1] {
        let second = scene.ask(copy, Call::Pay(id)).await;
        assert_eq!((second.status, second.error()), (423, Some("lock_busy")));
    }
    scene.counter().open();
    let status = async || scene.ask(1, Call::Show(id)).await.body["status"].clone();
    until("it is paid", status, |status| status == "paid").await;
    scene.all_locks_are_free().await;

    assert_eq!(scene.ask(1, Call::Pay(id)).await.status, 200);
    assert_eq!(scene.books().await["charges"], json!([id]));
}

/// Its write is on the way, and arrives when another one has sold the piece:
/// the table refuses it by its token.
async fn while_it_writes(scene: Scene) {
    let mut write = scene.hold_back_a_write();
    let gone = scene.start(0, BLUE_MUG);
    write.sent().await;
    gone.hang_up().await;
    let sold = scene.place(1).await;
    assert_eq!(sold.status, 201);

    assert_eq!(write.arrive().await, "Err(Outdated)");
    assert_eq!(scene.blue_mugs_left().await, STOCK - 1);
    assert_eq!(scene.books().await["orders"], json!([sold.body]));
}

on_each_store!(
    while_it_holds,
    while_it_waits,
    while_it_pays,
    while_it_writes
);
