//! What a client is answered.

use hyper::Method;
use serde_json::json;

use crate::client::{Answer, Call, send};
use crate::on_each_store;
use crate::scene::{BLUE_MUG, RED_MUG, SHELF, STOCK, Scene};
use crate::support::wait::until;

/// Status, `Retry-After` and the code of an error.
fn told(answer: &Answer) -> (u16, Option<&str>, Option<&str>) {
    (answer.status, answer.retry_after.as_deref(), answer.error())
}

async fn the_life_of_an_order(scene: Scene) {
    let order = |id: u64, status: &str| json!({ "id": id, "sku": "blue-mug", "quantity": 1, "status": status });
    let placed = scene.place(0).await;
    assert_eq!((placed.status, placed.body), (201, order(1, "placed")));
    for copy in [0, 1] {
        let paid = scene.ask(copy, Call::Pay(1)).await;
        assert_eq!((paid.status, paid.body), (200, order(1, "paid")));
    }
    let cancelled = scene.ask(0, Call::Cancel(1)).await;
    assert_eq!(told(&cancelled), (409, None, Some("paid")));

    assert_eq!(scene.place(1).await.body["id"], 2);
    for copy in [0, 1] {
        let cancelled = scene.ask(copy, Call::Cancel(2)).await;
        assert_eq!(
            (cancelled.status, cancelled.body),
            (200, order(2, "cancelled"))
        );
    }
    let paid = scene.ask(1, Call::Pay(2)).await;
    assert_eq!(told(&paid), (409, None, Some("cancelled")));

    let rest = u32::try_from(STOCK).expect("a small number") - 1;
    let sku = "blue-mug";
    for (quantity, status, error) in [
        (0, 422, Some("nothing_ordered")),
        (rest + 1, 409, Some("sold_out")),
        (rest, 201, None),
        (1, 409, Some("sold_out")),
    ] {
        let answer = scene.ask(0, Call::Place { sku, quantity }).await;
        assert_eq!(told(&answer), (status, None, error), "{quantity} pieces");
    }
    assert_eq!(
        scene.books().await,
        json!({
            "stock": { "blue-mug": 0, "red-mug": STOCK },
            "orders": [
                order(1, "paid"),
                order(2, "cancelled"),
                { "id": 3, "sku": "blue-mug", "quantity": rest, "status": "placed" },
            ],
            "charges": [1],
        })
    );
    scene.all_locks_are_free().await;
}

/// What cannot be is told before it becomes a key.
async fn nonsense(scene: Scene) {
    let sku = "purple-mug";
    let unknown = scene.ask(0, Call::Place { sku, quantity: 1 }).await;
    assert_eq!(told(&unknown), (404, None, Some("no_such_article")));
    for call in [Call::Show(9), Call::Pay(9), Call::Cancel(9)] {
        let answer = scene.ask(0, call).await;
        assert_eq!(told(&answer), (404, None, Some("no_such_order")));
    }
    let long = "x".repeat(5_000);
    for sku in ["", "Blue mug", &long] {
        let body = json!({ "sku": sku, "quantity": 1 }).to_string();
        let answer = send(scene.address(0), Method::POST, "/orders", body).await;
        assert_eq!(answer.expect("an answer").status, 422, "{sku:?}");
    }
}

/// Another request is at it.
async fn busy(scene: Scene) {
    assert_eq!(scene.place(0).await.body["id"], 1);
    scene.counter().close();
    let first = scene.start(0, Call::Pay(1));
    scene.counter().came(1).await;
    for copy in [0, 1] {
        let second = scene.ask(copy, Call::Pay(1)).await;
        assert_eq!(told(&second), (423, None, Some("lock_busy")));
    }
    scene.counter().open();
    assert_eq!(first.answer().await.status, 200);
    assert_eq!(scene.ask(1, Call::Pay(1)).await.status, 200);
}

/// Somebody took longer than the two seconds that the handler waits. What is
/// told apart in the key goes on meanwhile.
async fn timeout(mut scene: Scene) {
    let other_shop = scene.open_other_shop().await;
    scene.shelf().close();
    let slow = scene.start(0, BLUE_MUG);
    scene.shelf().came(1).await;

    let (late, later) = tokio::join!(scene.place(0), scene.place(1));
    for answer in [late, later] {
        assert_eq!(told(&answer), (503, Some("2"), Some("lock_timeout")));
    }
    assert_eq!(scene.ask(1, RED_MUG).await.status, 201);
    // The same article in another shop is another lock: this one gets in.
    let elsewhere = scene.start(other_shop, BLUE_MUG);
    scene.shelf().came(2).await;

    scene.shelf().open();
    assert_eq!(slow.answer().await.status, 201);
    assert_eq!(elsewhere.answer().await.status, 201);
    assert_eq!(scene.place(1).await.status, 201);
    assert_eq!(scene.blue_mugs_left().await, STOCK - 2);
}

/// The store is gone, and comes back.
async fn outage(mut scene: Scene) {
    assert_eq!(scene.place(0).await.status, 201);
    scene.store.fail();
    for copy in [0, 1] {
        let answer = scene.place(copy).await;
        assert_eq!(told(&answer), (503, Some("5"), Some("lock_unavailable")));
    }
    scene.store.heal().await;
    // A client that comes back is served in the end.
    for copy in [0, 1] {
        let place = async || told(&scene.place(copy).await).0;
        until("it is served", place, |&status| status == 201).await;
    }
    assert_eq!(scene.blue_mugs_left().await, STOCK - 3);
}

/// The lease is taken away while the handler runs: it stops, and the client
/// is not invited to repeat what may be done.
async fn loss(scene: Scene) {
    scene.shelf().close();
    let unlucky = scene.start(0, BLUE_MUG);
    scene.shelf().came(1).await;
    scene.store.take_away(SHELF).await;
    assert_eq!(
        told(&unlucky.answer().await),
        (500, None, Some("lock_lost"))
    );
    scene.shelf().open();
    assert_eq!(scene.place(1).await.status, 201);
    assert_eq!(scene.blue_mugs_left().await, STOCK - 1);
}

/// The bank has charged, and what the books should say of it was lost: whoever
/// comes next asks the bank first.
async fn a_charge_that_is_not_in_the_books(scene: Scene) {
    assert_eq!(scene.place(0).await.body["id"], 1);
    let mut write = scene.hold_back_a_write();
    let unlucky = scene.start(0, Call::Pay(1));
    write.sent().await;
    drop(write);
    assert_eq!(told(&unlucky.answer().await), (500, None, Some("failed")));

    let books = scene.books().await;
    assert_eq!(books["charges"], json!([1]));
    assert_eq!(books["orders"][0]["status"], "placed");
    let cancelled = scene.ask(1, Call::Cancel(1)).await;
    assert_eq!(told(&cancelled), (409, None, Some("paid")));
    assert_eq!(scene.ask(1, Call::Pay(1)).await.body["status"], "paid");
    assert_eq!(scene.books().await["charges"], json!([1]));
}

/// A customer whose payments find no room within two seconds is told so, in all copies. The
/// others pay meanwhile, and so do those whom nobody knows.
async fn so_many_payments_of_a_customer_at_once(mut scene: Scene) {
    let one = scene.open_with_payments(1).await;
    let other = scene.open_with_payments(1).await;
    let pay = |order, customer| Call::PayAs { order, customer };
    for id in 1..=5 {
        assert_eq!(scene.place(0).await.body["id"], id);
    }
    scene.counter().close();
    let first = scene.start(one, pay(1, "7"));
    scene.counter().came(1).await;
    let of_another = scene.start(other, pay(2, "8"));
    scene.counter().came(2).await;
    let of_nobody = scene.start(one, Call::Pay(3));
    scene.counter().came(3).await;
    for (copy, refused) in [
        (one, pay(4, "7")),
        (other, pay(4, "7")),
        // Who says nonsense is nobody, too.
        (other, pay(5, "seven")),
    ] {
        let refused = scene.ask(copy, refused).await;
        assert_eq!(told(&refused), (429, Some("2"), Some("too_many_requests")));
    }
    let waits = scene.start(other, pay(4, "7"));
    scene.waiting("mugs:payments:7", 1).await;
    scene.counter().open();
    for paid in [first, of_another, of_nobody, waits] {
        assert_eq!(paid.answer().await.status, 200);
    }
    scene.all_locks_are_free().await;
}

on_each_store!(
    the_life_of_an_order,
    nonsense,
    busy,
    timeout,
    outage,
    loss,
    so_many_payments_of_a_customer_at_once,
    a_charge_that_is_not_in_the_books
);
