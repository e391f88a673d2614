//! Two copies of the service, which share a store for their locks and one for
//! their books, with gates where a test can stop them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum_orders::bank::{Bank, InMemory, InRedis};
use axum_orders::table::{Table, memory, redis};
use axum_orders::{Shop, router};
use dlock::backend::memory::Memory;
use dlock::{Config, LockManager};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::{Answer, Call, Pending};
use crate::gate::{Gate, GatedBank, GatedTable, LateWrite};
use crate::support::redis::{RedisServer, Setup};
use crate::support::wait::until;

/// Pieces of each article.
pub(crate) const STOCK: u64 = 10;

pub(crate) const SHELF: &str = "mugs:stock:blue-mug";

pub(crate) struct Scene {
    pub(crate) store: Store,
    copies: Vec<Copy>,
    table: Arc<GatedTable>,
    bank: Arc<GatedBank>,
}

pub(crate) enum Store {
    Memory(Memory),
    Redis(Box<RedisServer>),
}

impl Store {
    fn config(&self) -> Config {
        match self {
            Self::Memory(memory) => Config::with_backend(memory.clone()),
            Self::Redis(server) => Config::from_url(&server.url()).expect("a valid URL"),
        }
    }

    /// Takes a lock away from its holder, as an operator could.
    pub(crate) async fn take_away(&self, key: &str) {
        match self {
            Self::Memory(memory) => assert!(memory.faults().take_away(key)),
            Self::Redis(server) => {
                let name = format!("dlock:{{{key}}}");
                let deleted: u32 = server.command(&["DEL", &name]).await;
                assert_eq!(deleted, 1, "nobody held `{key}`");
            }
        }
    }

    pub(crate) fn fail(&mut self) {
        match self {
            Self::Memory(memory) => memory.faults().set_unavailable(true),
            Self::Redis(server) => server.kill(),
        }
    }

    pub(crate) async fn heal(&mut self) {
        match self {
            Self::Memory(memory) => memory.faults().set_unavailable(false),
            Self::Redis(server) => server.restart().await,
        }
    }
}

struct Copy {
    address: SocketAddr,
    manager: LockManager,
    server: JoinHandle<()>,
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Copy {
    async fn start(manager: LockManager, shop: Shop) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        // A manager of its own for each copy, as a process would have.
        let scope = manager.clone();
        let in_scope = from_fn(move |request: Request, next: Next| {
            let manager = scope.clone();
            async move { manager.scope(next.run(request)).await }
        });
        let routes = router(Arc::new(shop)).layer(in_scope);
        let server = tokio::spawn(async move {
            axum::serve(listener, routes).await.expect("a server");
        });
        Self {
            address,
            manager,
            server,
        }
    }
}

impl Scene {
    pub(crate) async fn on_memory() -> Self {
        let table = Arc::new(memory::Table::default());
        let bank = Arc::new(InMemory::new(Duration::ZERO));
        Self::set(Store::Memory(Memory::new()), table, bank).await
    }

    pub(crate) async fn on_redis() -> Self {
        let server = Setup::default().append_only().start().await;
        let url = server.url();
        let table = redis::Table::connect(&url, "mugs").await.expect("Redis");
        let bank = InRedis::connect(&url, "mugs", Duration::ZERO).await;
        let bank = Arc::new(bank.expect("Redis"));
        Self::set(Store::Redis(Box::new(server)), Arc::new(table), bank).await
    }

    async fn set(store: Store, table: Arc<dyn Table>, bank: Arc<dyn Bank>) -> Self {
        let mut scene = Self {
            store,
            copies: Vec::new(),
            table: Arc::new(GatedTable::new(table)),
            bank: Arc::new(GatedBank::new(bank)),
        };
        scene
            .shop("mugs")
            .stock_up("blue-mug", STOCK)
            .await
            .expect("stock");
        scene
            .shop("mugs")
            .stock_up("red-mug", STOCK)
            .await
            .expect("stock");
        for _ in 0..2 {
            scene.open(scene.shop("mugs")).await;
        }
        scene
    }

    fn shop(&self, name: &str) -> Shop {
        Shop::new(name, self.table.clone(), self.bank.clone())
    }

    async fn open(&mut self, shop: Shop) {
        let manager = LockManager::connect(self.store.config());
        let manager = manager.await.expect("the store");
        self.copies.push(Copy::start(manager, shop).await);
    }

    /// Opens one more copy, in which a customer has only so many payments at once, and
    /// gives its number.
    pub(crate) async fn open_with_payments(&mut self, at_once: u32) -> usize {
        let shop = self.shop("mugs").payments_at_once(at_once);
        self.open(shop).await;
        self.copies.len() - 1
    }

    /// Opens one more copy, of a shop with another name and other books but the
    /// same gates, and gives its number.
    pub(crate) async fn open_other_shop(&mut self) -> usize {
        let table = self.table.with(Arc::new(memory::Table::default()));
        let shop = Shop::new("spoons", Arc::new(table), self.bank.clone());
        shop.stock_up("blue-mug", STOCK).await.expect("stock");
        self.open(shop).await;
        self.copies.len() - 1
    }

    /// Stops whoever holds the blue mugs' lock and looks at their shelf.
    pub(crate) fn shelf(&self) -> &Gate {
        &self.table.shelf
    }

    /// Stops whoever is about to charge.
    pub(crate) fn counter(&self) -> &Gate {
        &self.bank.counter
    }

    /// Makes the next write to the books late, or lost.
    pub(crate) fn hold_back_a_write(&self) -> LateWrite {
        self.table.hold_back_a_write()
    }

    pub(crate) fn address(&self, copy: usize) -> SocketAddr {
        self.copies[copy].address
    }

    /// Sends a request to one of the copies.
    pub(crate) fn start(&self, copy: usize, call: Call) -> Pending {
        Pending::start(self.address(copy), call)
    }

    pub(crate) async fn ask(&self, copy: usize, call: Call) -> Answer {
        self.start(copy, call).answer().await
    }

    /// One blue mug.
    pub(crate) async fn place(&self, copy: usize) -> Answer {
        self.ask(copy, BLUE_MUG).await
    }

    pub(crate) async fn books(&self) -> Value {
        // After an outage, a connection may have to be made first.
        let ask = async || self.ask(0, Call::Books).await;
        until("books", ask, |answer| answer.status == 200)
            .await
            .body
    }

    pub(crate) async fn blue_mugs_left(&self) -> u64 {
        let left = self.books().await["stock"]["blue-mug"].as_u64();
        left.expect("a number")
    }

    /// Waits until so many copies wait for a lock.
    pub(crate) async fn waiting(&self, key: &str, count: usize) {
        let waiters = async || {
            let lock = self.copies[0].manager.inspect(key).await;
            lock.expect("the store")
                .and_then(|lock| lock.waiters)
                .unwrap_or(0)
        };
        until("copies wait", waiters, |&waiters| waiters == count).await;
    }

    /// Waits until no lock is held and nobody waits for one.
    pub(crate) async fn all_locks_are_free(&self) {
        let list = async || self.copies[0].manager.list("").await.expect("the store");
        until("all locks are free", list, Vec::is_empty).await;
    }
}

pub(crate) const BLUE_MUG: Call = Call::Place {
    sku: "blue-mug",
    quantity: 1,
};

pub(crate) const RED_MUG: Call = Call::Place {
    sku: "red-mug",
    quantity: 1,
};
