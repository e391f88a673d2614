//! A shop in memcached: plain items. Its locks have no fencing tokens, so there
//! is nothing to refuse: a process that is paused for longer than the ttl of the
//! lock, in the middle of a sale, may sell a piece twice.

use async_memcached::{AsciiProtocol, Client, Error, MetaProtocol, Status};
use async_trait::async_trait;
use dlock::FencingToken;
use tokio::sync::{Mutex, MutexGuard};

use super::{ARTICLES, Progress, ShopError};
use crate::report::Receipt;

/// Should this program be killed, its items go after an hour.
const FORGOTTEN_AFTER: Option<i64> = Some(3600);

pub(crate) struct Shop {
    address: String,
    sale: String,
    /// A connection has one command under way at a time.
    client: Mutex<Client>,
}

impl From<Error> for ShopError {
    fn from(error: Error) -> Self {
        Self::Store(error.into())
    }
}

impl Shop {
    pub(crate) async fn connect(url: &str, sale: &str) -> Result<Self, ShopError> {
        let address = url.replacen("memcached:", "tcp:", 1);
        Ok(Self {
            client: Mutex::new(Client::new(&address).await?),
            address,
            sale: sale.to_owned(),
        })
    }

    fn item(&self, kind: &str, which: impl std::fmt::Display) -> String {
        format!("{}:{kind}:{which}", self.sale)
    }

    /// The connection; a new one if the last broke.
    async fn client(&self) -> Result<MutexGuard<'_, Client>, ShopError> {
        let mut client = self.client.lock().await;
        if client.is_closed() {
            *client = Client::new(&self.address).await?;
        }
        Ok(client)
    }

    async fn number(&self, item: String) -> Result<u64, ShopError> {
        let found = self.client().await?.get(item).await?;
        let text = found.and_then(|found| String::from_utf8(found.data?).ok());
        let number = text.and_then(|text| text.trim_end().parse().ok());
        number.ok_or_else(|| ShopError::Store("the shop has closed".into()))
    }

    /// Writes the page of an order, unless there is one.
    async fn write_page(&self, receipt: &Receipt) -> Result<bool, ShopError> {
        let page = self.item("book", receipt.order);
        let text = receipt.to_string();
        let mut client = self.client().await?;
        match client.add(page, &text, FORGOTTEN_AFTER, None).await {
            Ok(()) => {
                client.increment(self.item("orders", "booked"), 1).await?;
                Ok(true)
            }
            Err(Error::Protocol(Status::NotStored)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[async_trait]
impl super::Shop for Shop {
    async fn fill(&self, stock: u64) -> Result<(), ShopError> {
        let mut client = self.client().await?;
        for sku in 0..ARTICLES {
            let item = self.item("stock", sku);
            client.set(item, stock, FORGOTTEN_AFTER, None).await?;
        }
        for count in ["next", "booked", "sold"] {
            let item = self.item("orders", count);
            client.set(item, 0_u64, FORGOTTEN_AFTER, None).await?;
        }
        Ok(())
    }

    async fn stock(&self, sku: usize, _token: Option<FencingToken>) -> Result<u64, ShopError> {
        self.number(self.item("stock", sku)).await
    }

    /// Should this be cut off in the middle, a piece is gone that nobody has; a
    /// page written first would sell it twice.
    async fn set_stock(
        &self,
        left: u64,
        _token: Option<FencingToken>,
        sale: &Receipt,
    ) -> Result<(), ShopError> {
        let item = self.item("stock", sale.sku);
        let mut client = self.client().await?;
        client.set(item, left, FORGOTTEN_AFTER, None).await?;
        drop(client);
        if self.write_page(sale).await? {
            let sold = self.item("orders", "sold");
            self.client().await?.increment(sold, 1).await?;
        }
        Ok(())
    }

    async fn next_order(&self) -> Result<u64, ShopError> {
        let next = self.item("orders", "next");
        Ok(self.client().await?.increment(next, 1).await? - 1)
    }

    async fn book(&self, receipt: &Receipt) -> Result<(), ShopError> {
        self.write_page(receipt).await.map(drop)
    }

    async fn progress(&self) -> Result<Progress, ShopError> {
        let booked = self.number(self.item("orders", "booked")).await?;
        let sold = self.number(self.item("orders", "sold")).await?;
        Ok(Progress { booked, sold })
    }

    async fn close(&self) -> Result<Vec<Receipt>, ShopError> {
        let orders = self.number(self.item("orders", "next")).await?;
        let pages: Vec<_> = (0..orders).map(|order| self.item("book", order)).collect();
        let mut client = self.client().await?;
        let mut book = Vec::new();
        for pages in pages.chunks(100) {
            let found = client
                .meta_get_multi(pages, Some(&["v"]))
                .await?
                .into_iter();
            let texts = found.filter_map(|page| String::from_utf8(page.data?).ok());
            book.extend(texts.filter_map(|text| text.parse::<Receipt>().ok()));
        }
        let stock = (0..ARTICLES).map(|sku| self.item("stock", sku));
        let counts = ["next", "booked", "sold"].map(|count| self.item("orders", count));
        for item in pages.into_iter().chain(stock).chain(counts) {
            match client.delete(item).await {
                Ok(()) | Err(Error::Protocol(Status::NotFound)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(book)
    }
}
