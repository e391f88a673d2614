//! A shop in etcd: plain keys that are read and written, each in a transaction
//! that looks at the fencing token.

use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;
use etcd_client::{
    Client, Compare, CompareOp, ConnectOptions, DeleteOptions, Error, GetOptions, PutOptions, Txn,
    TxnOp, TxnOpResponse,
};

use super::{ARTICLES, Progress, ShopError};
use crate::report::Receipt;

/// Should this program be killed, its keys go after this time.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

pub(crate) struct Shop {
    client: Client,
    sale: String,
}

impl From<Error> for ShopError {
    fn from(error: Error) -> Self {
        Self::Store(error.into())
    }
}

/// Members, and who logs in, of a URL that dlock has found to be in order.
fn options(url: &str) -> Option<(Vec<&str>, ConnectOptions)> {
    let rest = url.strip_prefix("etcd://")?;
    let authority = rest.split(['/', '?']).next()?;
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let options = match login.split_once(':') {
        Some((user, password)) => ConnectOptions::new().with_user(user, password),
        None => ConnectOptions::new(),
    };
    Some((hosts.split(',').collect(), options))
}

impl Shop {
    pub(crate) async fn connect(url: &str, sale: &str) -> Result<Self, ShopError> {
        let encrypted = "the shop keeps its stock over plain connections: etcd://";
        let (hosts, options) = options(url).ok_or_else(|| ShopError::Store(encrypted.into()))?;
        let options = options
            .with_auto_token_refresh(true)
            .with_timeout(Duration::from_secs(30));
        Ok(Self {
            client: Client::connect(hosts, Some(options)).await?,
            // Beside the locks, for a user who has no more rights.
            sale: format!("dlock/{sale}"),
        })
    }

    fn key(&self, kind: &str, which: impl std::fmt::Display) -> String {
        format!("{}:{kind}:{which}", self.sale)
    }

    /// A put that leaves the key attached to the lease that it is attached to.
    fn put(&self, key: String, value: impl Into<Vec<u8>>) -> TxnOp {
        TxnOp::put(key, value, Some(PutOptions::new().with_ignore_lease()))
    }

    /// Does it unless the shop has seen a newer token for the article.
    async fn fenced(
        &self,
        sku: usize,
        token: Option<FencingToken>,
        mut work: Vec<TxnOp>,
    ) -> Result<Vec<TxnOpResponse>, ShopError> {
        let mut txn = Txn::new();
        if let Some(token) = token {
            let fence = self.key("fence", sku);
            let token = u64::from(token);
            let newer = digits(token.saturating_add(1));
            txn = txn.when([Compare::value(fence.as_str(), CompareOp::Less, newer)]);
            work.push(self.put(fence, digits(token)));
        }
        let done = self.client.kv_client().txn(txn.and_then(work)).await?;
        if !done.succeeded() {
            return Err(ShopError::Outdated);
        }
        Ok(done.op_responses())
    }

    /// The lease that all keys of the sale are attached to.
    async fn lease(&self) -> Result<i64, ShopError> {
        let mut client = self.client.kv_client();
        let orders = client.get(self.key("orders", "next"), None).await?;
        Ok(orders.kvs().first().map_or(0, |key| key.lease()))
    }

    async fn count(&self, kind: &str) -> Result<u64, ShopError> {
        let options = GetOptions::new().with_prefix().with_count_only();
        let mut client = self.client.kv_client();
        let found = client.get(self.key(kind, ""), Some(options)).await?;
        Ok(found.count().unsigned_abs())
    }
}

/// Numbers that are compared as texts.
fn digits(number: u64) -> String {
    format!("{number:020}")
}

#[async_trait]
impl super::Shop for Shop {
    async fn fill(&self, stock: u64) -> Result<(), ShopError> {
        let seconds = FORGOTTEN_AFTER.as_secs() as i64;
        let lease = self.client.lease_client().grant(seconds, None).await?.id();
        let put = |key: String, value: String| {
            TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
        };
        let shelves = (0..ARTICLES).flat_map(|sku| {
            let stock = put(self.key("stock", sku), stock.to_string());
            [stock, put(self.key("fence", sku), digits(0))]
        });
        let orders = put(self.key("orders", "next"), String::new());
        let all: Vec<_> = shelves.chain([orders]).collect();
        self.client
            .kv_client()
            .txn(Txn::new().and_then(all))
            .await?;
        Ok(())
    }

    async fn stock(&self, sku: usize, token: Option<FencingToken>) -> Result<u64, ShopError> {
        let read = TxnOp::get(self.key("stock", sku), None);
        let answers = self.fenced(sku, token, vec![read]).await?;
        let Some(TxnOpResponse::Get(found)) = answers.into_iter().next() else {
            return Err(ShopError::Store("an answer that is none".into()));
        };
        let pieces = found.kvs().first().and_then(|found| found.value_str().ok());
        let pieces = pieces.and_then(|text| text.parse().ok());
        pieces.ok_or_else(|| ShopError::Store("the shop has closed".into()))
    }

    async fn set_stock(
        &self,
        left: u64,
        token: Option<FencingToken>,
        sale: &Receipt,
    ) -> Result<(), ShopError> {
        let stock = self.put(self.key("stock", sale.sku), left.to_string());
        let lease = PutOptions::new().with_lease(self.lease().await?);
        let book = |kind: &str| {
            TxnOp::put(
                self.key(kind, sale.order),
                sale.to_string(),
                Some(lease.clone()),
            )
        };
        let work = vec![stock, book("book"), book("sold")];
        self.fenced(sale.sku, token, work).await.map(drop)
    }

    /// Each put makes a new version of its key.
    async fn next_order(&self) -> Result<u64, ShopError> {
        let options = PutOptions::new().with_ignore_lease().with_prev_key();
        let put = self
            .client
            .kv_client()
            .put(self.key("orders", "next"), "", Some(options))
            .await?;
        let before = put.prev_key().map_or(0, |before| before.version());
        Ok(before.unsigned_abs().saturating_sub(1))
    }

    async fn book(&self, receipt: &Receipt) -> Result<(), ShopError> {
        let key = self.key("book", receipt.order);
        let lease = PutOptions::new().with_lease(self.lease().await?);
        let txn = Txn::new()
            .when([Compare::version(key.as_str(), CompareOp::Equal, 0)])
            .and_then([TxnOp::put(key, receipt.to_string(), Some(lease))]);
        self.client.kv_client().txn(txn).await?;
        Ok(())
    }

    async fn progress(&self) -> Result<Progress, ShopError> {
        let (booked, sold) = (self.count("book").await?, self.count("sold").await?);
        Ok(Progress { booked, sold })
    }

    async fn close(&self) -> Result<Vec<Receipt>, ShopError> {
        let mut client = self.client.clone();
        let all = GetOptions::new().with_prefix();
        let book = client.get(self.key("book", ""), Some(all)).await?;
        let pages = book.kvs().iter().filter_map(|page| page.value_str().ok());
        let book = pages.filter_map(|page| page.parse().ok()).collect();
        let all = DeleteOptions::new().with_prefix();
        client.delete(format!("{}:", self.sale), Some(all)).await?;
        Ok(book)
    }
}
