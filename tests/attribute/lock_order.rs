//! What a user reads when annotated functions take locks in orders that can end
//! in a deadlock: to the letter, as it is all there is to go by.

use dlock::{Config, LockError, distributed_lock};
use dlock_conformance::connect;
use dlock_conformance::support::log::Log;

/// The messages of target `dlock::order` while `work` runs.
async fn warnings(work: impl Future<Output = Result<(), LockError>>) -> Vec<String> {
    let (log, _guard) = Log::of_this_thread();
    let manager = connect(Config::default().detect_lock_order(true)).await;
    manager.scope(work).await.expect("every lock is free");
    let messages = log
        .lines_with("WARN dlock::order ")
        .into_iter()
        .map(|line| {
            let (_, fields) = line.split_once(" message=").expect("a message");
            let (message, _) = fields.split_once(" circle=").expect("the circle");
            message.to_owned()
        });
    messages.collect()
}

/// Where `name` stands under its attribute.
fn place(name: &str) -> String {
    let function = format!("async fn {name}(");
    let mut lines = include_str!("lock_order.rs").lines();
    let line = lines.position(|line| line.starts_with(&function));
    // The attribute is one line above, and lines count from one.
    format!("{}:{}:1", file!(), line.expect("a function of this file"))
}

#[distributed_lock(key = "stock:<sku>")]
async fn reserve(sku: u32, order: u32) -> Result<(), LockError> {
    note(order).await
}

#[distributed_lock(key = "order:<id>")]
async fn note(id: u32) -> Result<(), LockError> {
    let _ = id;
    Ok(())
}

#[distributed_lock(key = "order:<order.id>")]
async fn cancel(order: Order) -> Result<(), LockError> {
    put_back(order.sku).await
}

#[distributed_lock(key = "stock:<piece>")]
async fn put_back(piece: u32) -> Result<(), LockError> {
    let _ = piece;
    Ok(())
}

struct Order {
    id: u32,
    sku: u32,
}

#[tokio::test(start_paused = true)]
async fn two_functions_in_opposite_orders() {
    let one = Order { id: 1, sku: 2 };
    let other = Order { id: 3, sku: 4 };
    let told = warnings(async {
        reserve(5, 6).await?;
        cancel(one).await?;
        cancel(other).await
    });
    let [reserve, note, cancel, put_back] = ["reserve", "note", "cancel", "put_back"].map(place);
    assert_eq!(
        told.await,
        [format!(
            "possible deadlock: these locks are taken in a circle, and tasks that meet in it wait \
             for each other, for ever if they have no timeout: (1) `order:<order.id>`, taken at \
             {cancel}, is held while `stock:<piece>` is taken at {put_back}; (2) `stock:<sku>`, \
             taken at {reserve}, is held while `order:<id>` is taken at {note}. Take them in the \
             same order everywhere; or take both at once where the first is taken, as keys that \
             are taken at once are sorted, and what is called inside re-enters: \
             `key = [\"order:<order.id>\", \"stock:<…>\"]` at {cancel}, \
             `key = [\"stock:<sku>\", \"order:<…>\"]` at {reserve}"
        )]
    );
}

#[distributed_lock(key = "acct:<from>")]
async fn transfer(from: u32, to: u32) -> Result<(), LockError> {
    credit(to).await
}

#[distributed_lock(key = "acct:<to>")]
async fn credit(to: u32) -> Result<(), LockError> {
    let _ = to;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn two_keys_of_one_template_in_both_orders() {
    let told = warnings(async {
        transfer(1, 2).await?;
        transfer(2, 3).await?;
        transfer(3, 1).await
    });
    let [transfer, credit] = ["transfer", "credit"].map(place);
    assert_eq!(
        told.await,
        [format!(
            "possible deadlock: two keys of one template are taken one under the other, in either \
             order, and tasks that do so at the same time wait for each other, for ever if they \
             have no timeout: `acct:<from>`, taken at {transfer}, is held while `acct:<to>` is \
             taken at {credit}. Take both at once where the first is taken, as keys that are \
             taken at once are sorted, and what is called inside re-enters: \
             `key = [\"acct:<from>\", \"acct:<…>\"]` at {transfer}"
        )]
    );
}

#[distributed_lock(key = ["acct:<from>", "acct:<to>"])]
async fn transfer_at_once(from: u32, to: u32) -> Result<(), LockError> {
    let _ = from;
    credit(to).await
}

/// What the warning proposes.
#[tokio::test(start_paused = true)]
async fn the_proposal_ends_it() {
    let told = warnings(async {
        transfer_at_once(1, 2).await?;
        transfer_at_once(2, 1).await
    });
    assert_eq!(told.await, Vec::<String>::new());
}

#[distributed_lock(key = account_key(id))]
async fn pay(id: u32) -> Result<(), LockError> {
    audit().await
}

#[distributed_lock(key = "audit")]
async fn audit() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "audit")]
async fn book(id: u32) -> Result<(), LockError> {
    pay(id).await
}

fn account_key(id: u32) -> String {
    format!("acct:{id}")
}

#[tokio::test(start_paused = true)]
async fn a_key_expression_is_shown_with_its_key() {
    let told = warnings(async {
        pay(7).await?;
        book(8).await?;
        book(7).await
    });
    let [pay, audit, book] = ["pay", "audit", "book"].map(place);
    let told = told.await;
    assert_eq!(told.len(), 1, "{told:#?}");
    for part in [
        format!(
            "`audit`, taken at {book}, is held while `account_key(id)` (here `acct:7`) is taken \
             at {pay};"
        ),
        format!(
            "`account_key(id)` (here `acct:7`), taken at {pay}, is held while `audit` is taken \
             at {audit}."
        ),
        format!("`key = [\"audit\", account_key(id)]` at {book}"),
        format!("`key = [account_key(id), \"audit\"]` at {pay}"),
    ] {
        assert!(told[0].contains(&part), "{part}\nis not in\n{}", told[0]);
    }
}
