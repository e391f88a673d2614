//! Places in the shop where a test stops whoever comes by.

use std::sync::Arc;

use async_trait::async_trait;
use axum_orders::bank::{Bank, BankError};
use axum_orders::table::{Change, Table, TableError};
use dlock::FencingToken;
use tokio::sync::watch;

use crate::support::wait::{HANG, within};

/// Open at first. Counts who has come.
#[derive(Debug)]
pub(crate) struct Gate(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    closed: bool,
    came: usize,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::default()))
    }

    pub(crate) fn close(&self) {
        self.0.send_modify(|state| state.closed = true);
    }

    pub(crate) fn open(&self) {
        self.0.send_modify(|state| state.closed = false);
    }

    /// Waits until so many have come in all.
    pub(crate) async fn came(&self, count: usize) {
        let mut state = self.0.subscribe();
        let came = state.wait_for(|state| state.came >= count);
        let came = within(HANG, came).await.expect("the gate is there").came;
        assert_eq!(came, count, "too many came through");
    }

    async fn pass(&self) {
        let mut state = self.0.subscribe();
        self.0.send_modify(|state| state.came += 1);
        let _ = state.wait_for(|state| !state.closed).await;
    }
}

/// A table with a gate for those who hold an article's lock and look at its
/// shelf.
pub(crate) struct GatedTable {
    table: Arc<dyn Table>,
    pub(crate) shelf: Arc<Gate>,
}

impl GatedTable {
    pub(crate) fn new(table: Arc<dyn Table>) -> Self {
        let shelf = Gate::new();
        Self { table, shelf }
    }

    /// Another table behind the same gate.
    pub(crate) fn with(&self, table: Arc<dyn Table>) -> Self {
        let shelf = Arc::clone(&self.shelf);
        Self { table, shelf }
    }
}

#[async_trait]
impl Table for GatedTable {
    async fn next_id(&self) -> Result<u64, TableError> {
        self.table.next_id().await
    }

    async fn insert(&self, record: &str, value: &str) -> Result<(), TableError> {
        self.table.insert(record, value).await
    }

    async fn read(
        &self,
        record: &str,
        token: Option<FencingToken>,
    ) -> Result<Option<String>, TableError> {
        if record == "stock:blue-mug" {
            self.shelf.pass().await;
        }
        self.table.read(record, token).await
    }

    async fn write(&self, changes: Vec<Change>) -> Result<(), TableError> {
        self.table.write(changes).await
    }

    async fn all(&self) -> Result<Vec<(String, String)>, TableError> {
        self.table.all().await
    }
}

/// A bank with a gate before each charge.
pub(crate) struct GatedBank {
    bank: Arc<dyn Bank>,
    pub(crate) counter: Arc<Gate>,
}

impl GatedBank {
    pub(crate) fn new(bank: Arc<dyn Bank>) -> Self {
        let counter = Gate::new();
        Self { bank, counter }
    }
}

#[async_trait]
impl Bank for GatedBank {
    async fn charge(&self, order: u64) -> Result<(), BankError> {
        self.counter.pass().await;
        self.bank.charge(order).await
    }

    async fn charges(&self) -> Result<Vec<u64>, BankError> {
        self.bank.charges().await
    }
}
