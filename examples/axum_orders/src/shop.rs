//! The shop's books: the stock of each article, and the orders.

use std::collections::BTreeMap;
use std::sync::Arc;

use dlock::{FencingToken, distributed_lock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::task::TaskTracker;

use crate::bank::Bank;
use crate::error::ShopError;
use crate::order::{NewOrder, Order, Sku, Status};
use crate::table::{Change, Table, TableError};

/// The state that axum hands to each handler.
pub struct Shop {
    /// Part of each key, so that two shops share a store without meeting.
    pub(crate) name: String,
    table: Arc<dyn Table>,
    pub(crate) bank: Arc<dyn Bank>,
    /// How many payments of one customer are under way at once, in all copies of the service.
    pub(crate) payments_at_once: u32,
    /// Those that are under way, also when their client has hung up.
    pub(crate) payments: TaskTracker,
}

/// Everything that is written down.
#[derive(Serialize)]
pub(crate) struct Books {
    stock: BTreeMap<String, u64>,
    orders: Vec<Order>,
    /// The orders that the bank has charged for, each as often as it has.
    charges: Vec<u64>,
}

/// The fencing token of the lock that the caller is inside of. Sent along with
/// each access, it lets the table refuse what comes late: from a process that
/// was paused until somebody else had the lock, or a write that was still on
/// its way when its request was dropped.
pub(crate) fn token() -> Option<FencingToken> {
    dlock::current().map(|held| held.token())
}

impl Shop {
    /// A shop with its books in `table`.
    pub fn new(name: impl Into<String>, table: Arc<dyn Table>, bank: Arc<dyn Bank>) -> Self {
        Self {
            name: name.into(),
            table,
            bank,
            payments_at_once: 64,
            payments: TaskTracker::new(),
        }
    }

    /// How many payments of one customer are under way at once, in all copies of the service:
    /// 64, if nothing else is said.
    #[must_use]
    pub fn payments_at_once(self, payments_at_once: u32) -> Self {
        Self {
            payments_at_once,
            ..self
        }
    }

    /// Puts so many pieces of an article on the shelf, unless the shop has it
    /// already.
    ///
    /// # Errors
    ///
    /// What the table says.
    pub async fn stock_up(&self, sku: &str, pieces: u64) -> Result<(), TableError> {
        let record = format!("stock:{sku}");
        self.table.insert(&record, &pieces.to_string()).await
    }

    /// Waits for the payments whose client has hung up. Call it when no new
    /// ones come.
    pub async fn finish_payments(&self) {
        self.payments.close();
        self.payments.wait().await;
    }

    /// How many pieces are left.
    pub(crate) async fn stock(
        &self,
        sku: &Sku,
        token: Option<FencingToken>,
    ) -> Result<u64, ShopError> {
        let record = self.table.read(&stock_record(sku), token).await?;
        parse(&record.ok_or(ShopError::NoSuchArticle)?)
    }

    pub(crate) async fn order(
        &self,
        id: u64,
        token: Option<FencingToken>,
    ) -> Result<Order, ShopError> {
        let record = self.table.read(&order_record(id), token).await?;
        parse(&record.ok_or(ShopError::NoSuchOrder)?)
    }

    /// Writes a new order, and what it leaves on the shelf.
    pub(crate) async fn place(
        &self,
        wanted: NewOrder,
        left: u64,
        token: Option<FencingToken>,
    ) -> Result<Order, ShopError> {
        let order = Order {
            id: self.table.next_id().await?,
            sku: wanted.sku,
            quantity: wanted.quantity,
            status: Status::Placed,
        };
        let shelf = Change::new(stock_record(&order.sku), left.to_string(), token);
        self.table.write(vec![shelf, change(&order, None)?]).await?;
        Ok(order)
    }

    pub(crate) async fn update(
        &self,
        order: &Order,
        token: Option<FencingToken>,
    ) -> Result<(), ShopError> {
        Ok(self.table.write(vec![change(order, token)?]).await?)
    }

    /// Cancels an order whose lock the caller holds under `of_order`.
    #[distributed_lock(key = "<self.name>:stock:<order.sku>", ttl = "5s", timeout = "2s")]
    pub(crate) async fn put_back(
        &self,
        mut order: Order,
        of_order: Option<FencingToken>,
    ) -> Result<Order, ShopError> {
        let token = token();
        let left = self.stock(&order.sku, token).await? + u64::from(order.quantity);
        order.status = Status::Cancelled;
        let shelf = Change::new(stock_record(&order.sku), left.to_string(), token);
        self.table
            .write(vec![shelf, change(&order, of_order)?])
            .await?;
        Ok(order)
    }

    pub(crate) async fn books(&self) -> Result<Books, ShopError> {
        let mut books = Books {
            stock: BTreeMap::new(),
            orders: Vec::new(),
            charges: self.bank.charges().await?,
        };
        for (record, value) in self.table.all().await? {
            match record.strip_prefix("stock:") {
                Some(sku) => {
                    books.stock.insert(sku.to_owned(), parse(&value)?);
                }
                None => books.orders.push(parse(&value)?),
            }
        }
        books.orders.sort_by_key(|order| order.id);
        Ok(books)
    }
}

fn stock_record(sku: &Sku) -> String {
    format!("stock:{sku}")
}

fn order_record(id: u64) -> String {
    format!("order:{id}")
}

fn change(order: &Order, token: Option<FencingToken>) -> Result<Change, ShopError> {
    let value = serde_json::to_string(order).map_err(TableError::unreadable)?;
    Ok(Change::new(order_record(order.id), value, token))
}

fn parse<T: DeserializeOwned>(value: &str) -> Result<T, ShopError> {
    Ok(serde_json::from_str(value).map_err(TableError::unreadable)?)
}
