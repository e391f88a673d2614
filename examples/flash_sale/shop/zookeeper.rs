//! A shop in ZooKeeper: plain nodes that are read and written, each with a look
//! at the fencing token beside the stock.

use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, MultiReadResult};

use super::{ARTICLES, Progress, ShopError};
use crate::report::Receipt;

const NODE: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

/// How many pages are read at once.
const AT_ONCE: usize = 500;

pub(crate) struct Shop {
    client: Client,
    sale: String,
}

impl From<Error> for ShopError {
    fn from(error: Error) -> Self {
        Self::Store(error.into())
    }
}

/// What is written on a shelf: the pieces that are left, and the newest token.
struct Shelf {
    left: u64,
    fence: u64,
    version: i32,
}

impl Shop {
    pub(crate) async fn connect(url: &str, sale: &str) -> Result<Self, ShopError> {
        let plain = "the shop keeps its stock where nobody logs in: zookeeper://host,host/folder";
        let hosts = url
            .strip_prefix("zookeeper://")
            .and_then(|rest| rest.split(['/', '?']).next())
            .filter(|hosts| !hosts.contains('@'))
            .ok_or_else(|| ShopError::Store(plain.into()))?;
        // Whose session has ended cannot go on.
        let client = Client::connector()
            .with_session_timeout(Duration::from_secs(30))
            .connect(hosts)
            .await?;
        Ok(Self {
            client,
            sale: format!("/{sale}"),
        })
    }

    fn node(&self, name: &str) -> String {
        format!("{}/{name}", self.sale)
    }

    fn shelf(&self, sku: usize) -> String {
        self.node(&format!("stock-{sku}"))
    }

    fn page(&self, order: u64) -> String {
        self.node(&format!("book/{order}"))
    }

    /// What is on the shelf, for who has no older token than somebody before.
    async fn look(&self, sku: usize, token: Option<FencingToken>) -> Result<Shelf, ShopError> {
        let (text, stat) = self.client.get_data(&self.shelf(sku)).await?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let numbers = text.split_once(' ').and_then(|(left, fence)| {
            let (left, fence) = (left.parse().ok()?, fence.parse().ok()?);
            Some((left, fence))
        });
        let (left, fence) =
            numbers.ok_or_else(|| ShopError::Store("an unreadable shelf".into()))?;
        if token.is_some_and(|token| u64::from(token) < fence) {
            return Err(ShopError::Outdated);
        }
        Ok(Shelf {
            left,
            fence: token.map_or(fence, u64::from),
            version: stat.version,
        })
    }
}

#[async_trait]
impl super::Shop for Shop {
    async fn fill(&self, stock: u64) -> Result<(), ShopError> {
        self.client.mkdir(&self.sale, &NODE).await?;
        for sku in 0..ARTICLES {
            let text = format!("{stock} 0");
            let shelf = self.shelf(sku);
            self.client.create(&shelf, text.as_bytes(), &NODE).await?;
        }
        for name in ["book", "sold", "next"] {
            self.client.create(&self.node(name), b"", &NODE).await?;
        }
        Ok(())
    }

    async fn stock(&self, sku: usize, token: Option<FencingToken>) -> Result<u64, ShopError> {
        loop {
            let Shelf {
                left,
                fence,
                version,
            } = self.look(sku, token).await?;
            if token.is_none() {
                return Ok(left);
            }
            let text = format!("{left} {fence}");
            let noted = self
                .client
                .set_data(&self.shelf(sku), text.as_bytes(), Some(version));
            match noted.await {
                Ok(_) => return Ok(left),
                // Somebody else has written meanwhile.
                Err(Error::BadVersion) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn set_stock(
        &self,
        left: u64,
        token: Option<FencingToken>,
        sale: &Receipt,
    ) -> Result<(), ShopError> {
        loop {
            let Shelf { fence, version, .. } = self.look(sale.sku, token).await?;
            let text = format!("{left} {fence}");
            let written = {
                let mut all = self.client.new_multi_writer();
                all.add_set_data(&self.shelf(sale.sku), text.as_bytes(), Some(version))?;
                // Each write makes a new version of it.
                all.add_set_data(&self.node("sold"), b"", None)?;
                let page = sale.to_string();
                all.add_create(&self.page(sale.order), page.as_bytes(), &NODE)?;
                all.commit()
            };
            match written.await.map_err(Error::from) {
                Ok(_) => return Ok(()),
                Err(Error::BadVersion) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn next_order(&self) -> Result<u64, ShopError> {
        let stat = self.client.set_data(&self.node("next"), b"", None).await?;
        Ok(u64::from(stat.version.unsigned_abs()).saturating_sub(1))
    }

    async fn book(&self, receipt: &Receipt) -> Result<(), ShopError> {
        let (page, text) = (self.page(receipt.order), receipt.to_string());
        match self.client.create(&page, text.as_bytes(), &NODE).await {
            Ok(_) | Err(Error::NodeExists) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn progress(&self) -> Result<Progress, ShopError> {
        let stat = async |name: &str| {
            let stat = self.client.check_stat(&self.node(name)).await?;
            stat.ok_or_else(|| ShopError::Store("the shop has closed".into()))
        };
        let (book, sold) = (stat("book").await?, stat("sold").await?);
        Ok(Progress {
            booked: u64::from(book.num_children.unsigned_abs()),
            sold: u64::from(sold.version.unsigned_abs()),
        })
    }

    async fn close(&self) -> Result<Vec<Receipt>, ShopError> {
        let pages = self.client.list_children(&self.node("book")).await?;
        let pages: Vec<_> = pages
            .iter()
            .map(|page| self.node(&format!("book/{page}")))
            .collect();
        let mut book = Vec::new();
        for pages in pages.chunks(AT_ONCE) {
            let read = {
                let mut all = self.client.new_multi_reader();
                for page in pages {
                    all.add_get_data(page)?;
                }
                all.commit()
            };
            for page in read.await? {
                if let MultiReadResult::Data { data, .. } = page {
                    book.extend(String::from_utf8_lossy(&data).parse().ok());
                }
            }
        }
        let shelves = (0..ARTICLES).map(|sku| self.shelf(sku));
        let rest = ["book", "sold", "next"].map(|name| self.node(name));
        let all: Vec<_> = pages.into_iter().chain(shelves).chain(rest).collect();
        for nodes in all.chunks(AT_ONCE) {
            let delete = {
                let mut delete = self.client.new_multi_writer();
                for node in nodes {
                    delete.add_delete(node, None)?;
                }
                delete.commit()
            };
            delete.await.map_err(Error::from)?;
        }
        self.client.delete(&self.sale, None).await?;
        Ok(book)
    }
}
