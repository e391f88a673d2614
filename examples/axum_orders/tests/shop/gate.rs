//! Places in the shop where a test stops whoever comes by.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use axum_orders::bank::{Bank, BankError};
use axum_orders::table::{Change, Table, TableError};
use dlock::FencingToken;
use tokio::sync::{oneshot, watch};

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

/// A write that is on its way to the table, whatever becomes of its sender. It
/// is lost if this is dropped.
pub(crate) struct LateWrite {
    sent: oneshot::Receiver<()>,
    go_on: oneshot::Sender<()>,
    outcome: oneshot::Receiver<String>,
}

/// The table's side of it.
struct HeldBack {
    sent: oneshot::Sender<()>,
    go_on: oneshot::Receiver<()>,
    outcome: oneshot::Sender<String>,
}

impl LateWrite {
    /// Waits until it is on its way.
    pub(crate) async fn sent(&mut self) {
        let sent = within(HANG, &mut self.sent).await;
        sent.expect("the table is there");
    }

    /// Lets it arrive, and returns what the table makes of it.
    pub(crate) async fn arrive(self) -> String {
        self.go_on.send(()).expect("it is on its way");
        let outcome = within(HANG, self.outcome).await;
        outcome.expect("the table is there")
    }
}

/// A table with a gate for those who hold an article's lock and look at its
/// shelf.
pub(crate) struct GatedTable {
    table: Arc<dyn Table>,
    pub(crate) shelf: Arc<Gate>,
    held_back: Mutex<Option<HeldBack>>,
}

impl GatedTable {
    pub(crate) fn new(table: Arc<dyn Table>) -> Self {
        Self {
            table,
            shelf: Gate::new(),
            held_back: Mutex::default(),
        }
    }

    /// Another table behind the same gate.
    pub(crate) fn with(&self, table: Arc<dyn Table>) -> Self {
        Self {
            shelf: Arc::clone(&self.shelf),
            ..Self::new(table)
        }
    }

    /// Makes the next write a late one.
    pub(crate) fn hold_back_a_write(&self) -> LateWrite {
        let (tell_sent, sent) = oneshot::channel();
        let (go_on, told_to_go_on) = oneshot::channel();
        let (tell_outcome, outcome) = oneshot::channel();
        *self.next_write() = Some(HeldBack {
            sent: tell_sent,
            go_on: told_to_go_on,
            outcome: tell_outcome,
        });
        LateWrite {
            sent,
            go_on,
            outcome,
        }
    }

    fn next_write(&self) -> std::sync::MutexGuard<'_, Option<HeldBack>> {
        self.held_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        let Some(late) = self.next_write().take() else {
            return self.table.write(changes).await;
        };
        let table = Arc::clone(&self.table);
        let write = tokio::spawn(async move {
            let _ = late.sent.send(());
            late.go_on
                .await
                .map_err(|lost| TableError::Store(lost.into()))?;
            let answer = table.write(changes).await;
            let _ = late.outcome.send(format!("{answer:?}"));
            answer
        });
        write.await.expect("no panic")
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
