//! A shop in memory, as far away as a database: every access takes a while,
//! and others run meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;

use super::{ARTICLES, Progress, ShopError};
use crate::report::{Outcome, Receipt};

const DISTANCE: Duration = Duration::from_micros(500);

#[derive(Default)]
pub(crate) struct Shop {
    next_order: AtomicU64,
    shelves: [Mutex<Shelf>; ARTICLES],
    book: Mutex<BTreeMap<u64, Receipt>>,
}

#[derive(Default)]
struct Shelf {
    left: u64,
    newest: Option<FencingToken>,
}

impl Shop {
    /// The shelf, for whoever has no older token than somebody before.
    async fn shelf(
        &self,
        sku: usize,
        token: Option<FencingToken>,
    ) -> Result<MutexGuard<'_, Shelf>, ShopError> {
        tokio::time::sleep(DISTANCE).await;
        let mut shelf = self.shelves[sku].lock().expect("nobody panics here");
        if token.is_some() && token < shelf.newest {
            return Err(ShopError::Outdated);
        }
        shelf.newest = token;
        Ok(shelf)
    }

    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, Receipt>> {
        self.book.lock().expect("nobody panics here")
    }
}

#[async_trait]
impl super::Shop for Shop {
    async fn fill(&self, stock: u64) -> Result<(), ShopError> {
        for shelf in &self.shelves {
            shelf.lock().expect("nobody panics here").left = stock;
        }
        Ok(())
    }

    async fn stock(&self, sku: usize, token: Option<FencingToken>) -> Result<u64, ShopError> {
        Ok(self.shelf(sku, token).await?.left)
    }

    async fn set_stock(
        &self,
        left: u64,
        token: Option<FencingToken>,
        sale: &Receipt,
    ) -> Result<(), ShopError> {
        self.shelf(sale.sku, token).await?.left = left;
        self.pages().insert(sale.order, sale.clone());
        Ok(())
    }

    async fn next_order(&self) -> Result<u64, ShopError> {
        Ok(self.next_order.fetch_add(1, Relaxed))
    }

    async fn book(&self, receipt: &Receipt) -> Result<(), ShopError> {
        self.pages()
            .entry(receipt.order)
            .or_insert_with(|| receipt.clone());
        Ok(())
    }

    async fn progress(&self) -> Result<Progress, ShopError> {
        let pages = self.pages();
        let sold = pages.values().filter(|one| one.outcome == Outcome::Sold);
        Ok(Progress {
            booked: pages.len() as u64,
            sold: sold.count() as u64,
        })
    }

    async fn close(&self) -> Result<Vec<Receipt>, ShopError> {
        Ok(std::mem::take(&mut *self.pages()).into_values().collect())
    }
}
