//! The shop: a stock that can be read and written, and no more, and a book of
//! what became of each order.
//!
//! It refuses a fencing token that is older than one it has seen. That is for
//! the process that was paused in the middle of a sale: when it goes on,
//! somebody else has had the lock.

#[cfg(feature = "redis")]
mod cluster;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "memcached")]
mod memcached;
mod memory;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod sentinel;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;

use crate::arguments::{Arguments, Store};
use crate::report::Receipt;

/// How many articles there are.
pub(crate) const ARTICLES: usize = 8;

/// The article that an order is for: the same in every process and run.
pub(crate) fn sku_of(order: u64) -> usize {
    fastrand::Rng::with_seed(order).usize(..ARTICLES)
}

/// Pieces of each article: enough for about three of five orders.
pub(crate) fn stock_for(orders: u64) -> u64 {
    (orders * 3 / 5 / ARTICLES as u64).max(1)
}

#[async_trait]
pub(crate) trait Shop: Send + Sync {
    /// Puts so many pieces of each article on the shelves.
    async fn fill(&self, stock: u64) -> Result<(), ShopError>;

    /// How many pieces of an article are left.
    async fn stock(&self, sku: usize, token: Option<FencingToken>) -> Result<u64, ShopError>;

    /// Writes what is left, and books the sale along with it.
    async fn set_stock(
        &self,
        left: u64,
        token: Option<FencingToken>,
        sale: &Receipt,
    ) -> Result<(), ShopError>;

    /// The number of the next order, from 0.
    async fn next_order(&self) -> Result<u64, ShopError>;

    /// Books what became of an order, unless it is in the book already.
    async fn book(&self, receipt: &Receipt) -> Result<(), ShopError>;

    /// How far the sale is.
    async fn progress(&self) -> Result<Progress, ShopError>;

    /// The book. Leaves nothing of the sale behind.
    async fn close(&self) -> Result<Vec<Receipt>, ShopError>;
}

/// Opens a new sale with all of its stock; joins the one that is going on if
/// this is one of several processes.
pub(crate) async fn open(arguments: &Arguments) -> Result<Arc<dyn Shop>, ShopError> {
    let shop: Arc<dyn Shop> = match &arguments.store {
        Store::Memory => Arc::new(memory::Shop::default()),
        Store::Shared(url) => connect(url, &arguments.sale).await?,
    };
    if arguments.process.is_none() {
        shop.fill(stock_for(arguments.orders)).await?;
    }
    Ok(shop)
}

/// The shop in the store of the locks.
async fn connect(url: &str, sale: &str) -> Result<Arc<dyn Shop>, ShopError> {
    let scheme = url.split(':').next().unwrap_or_default();
    match scheme {
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(Arc::new(etcd::Shop::connect(url, sale).await?)),
        #[cfg(feature = "memcached")]
        "memcached" => Ok(Arc::new(memcached::Shop::connect(url, sale).await?)),
        #[cfg(feature = "redis")]
        _ if scheme.starts_with("redis") => Ok(Arc::new(redis::Shop::connect(url, sale).await?)),
        #[cfg(feature = "mysql")]
        "mysql" => Ok(Arc::new(sql::Shop::<sql::MySql>::connect(url, sale).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Arc::new(
            sql::Shop::<sql::Postgres>::connect(url, sale).await?,
        )),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Arc::new(
            sql::Shop::<sql::Sqlite>::connect(url, sale).await?,
        )),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Ok(Arc::new(zookeeper::Shop::connect(url, sale).await?)),
        _ => Err(ShopError::Store(
            format!("the shop of {sale} keeps no stock in a {scheme}: store").into(),
        )),
    }
}

/// Asks the shop again while it does not answer: one answer that is lost, as
/// when this process was paused, is not the end of the shop.
pub(crate) async fn insist<T, A>(mut ask: impl FnMut() -> A) -> Result<T, ShopError>
where
    A: Future<Output = Result<T, ShopError>>,
{
    for _ in 0..20 {
        if let Ok(answer) = ask().await {
            return Ok(answer);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ask().await
}

/// The book, and leaves nothing of the sale behind. The connection may be the
/// very reason for closing: then over a new one.
pub(crate) async fn close(
    shop: &dyn Shop,
    arguments: &Arguments,
) -> Result<Vec<Receipt>, ShopError> {
    match (&arguments.store, shop.close().await) {
        (Store::Shared(url), Err(_)) => connect(url, &arguments.sale).await?.close().await,
        (_, closed) => closed,
    }
}

/// What the book says at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Orders in it.
    pub(crate) booked: u64,
    /// Those of them that are sold.
    pub(crate) sold: u64,
}

#[derive(Debug)]
pub(crate) enum ShopError {
    /// The token is older than one that the shop has seen.
    Outdated,
    /// The store did not do it.
    Store(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for ShopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outdated => f.write_str("somebody else has had the lock since"),
            Self::Store(error) => write!(f, "the stock's store: {error}"),
        }
    }
}

impl std::error::Error for ShopError {}
