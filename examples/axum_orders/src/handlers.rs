//! What the shop does for a request. Each lock is one line.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router, debug_handler};
use dlock::tower::LimitLayer;
use dlock::{LockScopeExt, distributed_lock};

use crate::error::ShopError;
use crate::order::{NewOrder, Order, Status};
use crate::shop::{Books, Shop, token};

/// The shop's routes.
pub fn router(shop: Arc<Shop>) -> Router {
    Router::new()
        .route("/orders", post(place))
        .route("/orders/{id}", get(show).delete(cancel))
        .route(
            "/orders/{id}/payment",
            post(pay).layer(limit_of_customer(&shop)),
        )
        .route("/books", get(books))
        .with_state(shop)
}

/// No customer keeps the bank from the others: each has only so many payments under way, in
/// all copies together. A request that finds no room within two seconds is told that its
/// customer asks too much: 429, and to come back later.
fn limit_of_customer(
    shop: &Shop,
) -> LimitLayer<impl Fn(&Request) -> Option<String> + Clone + use<>> {
    let name = shop.name.clone();
    let key = move |request: &Request| Some(format!("{name}:payments:{}", customer(request)));
    LimitLayer::new(shop.payments_at_once, key)
        .template("<shop>:payments:<customer>")
        .ttl(Duration::from_secs(5))
        .timeout(Duration::from_secs(2))
}

/// The customer of a request, from a header that the gateway sets. Requests without a customer
/// share one limit.
fn customer(request: &Request) -> u64 {
    let number = request.headers().get("x-customer");
    let number = number.and_then(|number| number.to_str().ok()?.parse().ok());
    number.unwrap_or(0)
}

/// Takes pieces from the shelf. Requests for other articles do not wait for
/// this one.
///
/// A client that hangs up drops the handler at an await: there is nothing to
/// undo, as all is in one write.
#[debug_handler]
#[distributed_lock(key = "<shop.name>:stock:<wanted.sku>", ttl = "5s", timeout = "2s")]
async fn place(
    State(shop): State<Arc<Shop>>,
    Json(wanted): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), ShopError> {
    if wanted.quantity == 0 {
        return Err(ShopError::NothingOrdered);
    }
    let token = token();
    let left = shop.stock(&wanted.sku, token).await?;
    let left = left
        .checked_sub(wanted.quantity.into())
        .ok_or(ShopError::SoldOut)?;
    let order = shop.place(wanted, left, token).await?;
    Ok((StatusCode::CREATED, Json(order)))
}

/// Charges for an order, once. A second request for the same order, such as an
/// impatient second click, is told at once that the first is at it: 423.
#[debug_handler]
#[distributed_lock(key = "<shop.name>:order:<id>", ttl = "5s", try)]
async fn pay(State(shop): State<Arc<Shop>>, Path(id): Path<u64>) -> Result<Json<Order>, ShopError> {
    // Once begun, a payment is not cut short by a client that hangs up: it is
    // a task, which is inside this lock and keeps it until its own end.
    let payment = settle(Arc::clone(&shop), id).in_lock_scope();
    shop.payments.spawn(payment).await?
}

/// The payment itself, whoever waits for it.
///
/// The token fences the books, but not the bank: banks take no token. A copy may be paused between
/// the question and the charge until its lease has ended, or lose it while the charge is in flight.
/// Then it may charge beside its successor. So give a real provider an idempotency key, such as the
/// number of the order. The lock then only keeps a payment and a cancellation apart. This bank has
/// no such key, so that the tests see how far the lock alone goes.
#[distributed_lock(key = "<shop.name>:order:<id>", ttl = "5s", try)]
async fn settle(shop: Arc<Shop>, id: u64) -> Result<Json<Order>, ShopError> {
    let token = token();
    let mut order = shop.order(id, token).await?;
    match order.status {
        Status::Paid => return Ok(Json(order)),
        Status::Cancelled => return Err(ShopError::Cancelled),
        Status::Placed => {}
    }
    // A copy of the service may have died after the charge and before it was
    // in the books.
    if !shop.bank.has_charged(id).await? {
        shop.bank.charge(id).await?;
    }
    order.status = Status::Paid;
    shop.update(&order, token).await?;
    Ok(Json(order))
}

/// Puts the pieces back. Takes the lock of the order first, since only the order names the article,
/// and then that of the article. No other handler takes these two in the opposite order.
#[debug_handler]
#[distributed_lock(key = "<shop.name>:order:<id>", ttl = "5s", timeout = "2s")]
async fn cancel(
    State(shop): State<Arc<Shop>>,
    Path(id): Path<u64>,
) -> Result<Json<Order>, ShopError> {
    let token = token();
    let order = shop.order(id, token).await?;
    match order.status {
        // The same death: paid, and not in the books yet.
        Status::Placed if shop.bank.has_charged(id).await? => Err(ShopError::Paid),
        Status::Placed => Ok(Json(shop.put_back(order, token).await?)),
        Status::Cancelled => Ok(Json(order)),
        Status::Paid => Err(ShopError::Paid),
    }
}

/// A single record needs no lock to be read.
#[debug_handler]
async fn show(
    State(shop): State<Arc<Shop>>,
    Path(id): Path<u64>,
) -> Result<Json<Order>, ShopError> {
    Ok(Json(shop.order(id, None).await?))
}

#[debug_handler]
async fn books(State(shop): State<Arc<Shop>>) -> Result<Json<Books>, ShopError> {
    Ok(Json(shop.books().await?))
}
