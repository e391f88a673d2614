//! The PostgreSQL store: the conformance suite on a real server, and what only
//! a server with sessions can do wrong.

#![cfg(feature = "postgres")]

#[path = "../support/example.rs"]
mod example;
#[path = "../support/mod.rs"]
mod support;
#[path = "../tables/mod.rs"]
mod tables;

mod cost;
mod durability;
mod fencing;
mod messages;
mod pooler;
mod refusals;
mod restarts;
mod server;

use std::sync::Arc;
use std::time::Duration;

use dlock::Config;
use dlock::backend::postgres::Postgres;
use dlock::backend::sqlx;
use dlock_conformance::processes::Shared;
use dlock_conformance::{Store, async_trait, conformance, contenders};

use server::Server;
use support::proxy::Proxy;
use tables::{FarTables, Tables, far_tables, tables};

/// A database of the test's own, reached through a proxy that can fail.
struct PostgresStore {
    server: Arc<Server>,
    proxy: Proxy,
    database: String,
}

impl PostgresStore {
    async fn on(server: Arc<Server>) -> Self {
        Self {
            proxy: Proxy::to(server.port()),
            database: server.database().await,
            server,
        }
    }
}

#[async_trait(?Send)]
impl Store for PostgresStore {
    async fn start() -> Self {
        Self::on(Server::shared().await).await
    }

    async fn start_durable() -> Self {
        Self::on(Server::shared_durable().await).await
    }

    fn config(&self) -> Config {
        Config::from_url(&self.url()).expect("a valid URL")
    }

    fn url_at(&self, [port, ..]: [u16; 3]) -> Option<String> {
        Some(format!("postgres://user:password@127.0.0.1:{port}/db"))
    }

    async fn set_refused(&self, refused: bool) -> bool {
        self.proxy.shut(refused);
        true
    }

    async fn take_away(&self, key: &str) {
        let mut connection = self.server.connection(&self.database).await;
        let taken = sqlx::query("UPDATE dlock_lock SET owner = '', expires_at = 0 WHERE name = $1")
            .bind(key)
            .execute(&mut connection)
            .await
            .expect("the table of locks");
        assert_eq!(taken.rows_affected(), 1, "nobody held `{key}`");
    }

    async fn set_outage(&self, outage: bool) {
        self.proxy.refuse(outage);
    }

    async fn set_silence(&self, silence: bool) {
        self.proxy.stall(silence);
    }

    async fn records(&self) -> Option<usize> {
        let records: i64 = sqlx::query_scalar(
            "SELECT (SELECT COUNT(*) FROM dlock_lock) + (SELECT COUNT(*) FROM dlock_reader)
                + (SELECT COUNT(*) FROM dlock_queue) + (SELECT COUNT(*) FROM dlock_process)",
        )
        .fetch_one(&mut self.server.connection(&self.database).await)
        .await
        .expect("the tables");
        Some(usize::try_from(records).expect("a count"))
    }
}

#[async_trait(?Send)]
impl Shared for PostgresStore {
    fn url(&self) -> String {
        let url = self.server.url(&self.database, self.proxy.port());
        format!("{url}?create_tables=true")
    }
}

impl Tables for PostgresStore {
    const NOW: &'static str = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";

    async fn execute(&self, sql: &str) -> u64 {
        let mut connection = self.server.connection(&self.database).await;
        let done = sqlx::query(sql).execute(&mut connection).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"))
            .rows_affected()
    }

    async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.server.connection(&self.database).await;
        let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
        number.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }
}

impl FarTables for PostgresStore {
    type Keeper = sqlx::PgConnection;

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn direct(&self) -> Config {
        let url = self.server.url(&self.database, self.server.port());
        Config::from_url(&format!("{url}?create_tables=true")).expect("a valid URL")
    }

    async fn keep(&self, key: &str) -> Self::Keeper {
        let mut connection = self.server.connection(&self.database).await;
        let begin = sqlx::raw_sql("BEGIN").execute(&mut connection).await;
        begin.expect("a transaction");
        sqlx::query("SELECT name FROM dlock_lock WHERE name = $1 FOR UPDATE")
            .bind(key)
            .fetch_one(&mut connection)
            .await
            .expect("the row of the lock");
        connection
    }

    async fn keep_queue(&self) -> Self::Keeper {
        let mut connection = self.server.connection(&self.database).await;
        let lock = sqlx::raw_sql("BEGIN; LOCK TABLE dlock_queue");
        lock.execute(&mut connection).await.expect("the table");
        connection
    }

    fn narrow(&self, request_timeout: Duration) -> Config {
        let store = Postgres::from_url(&self.url()).expect("a valid URL");
        Config::with_backend(store.max_connections(1).request_timeout(request_timeout))
    }
}

conformance!(crate::PostgresStore);
contenders!(crate::PostgresStore);
tables!(crate::PostgresStore);
far_tables!(crate::PostgresStore);

#[test]
fn a_flash_sale_sells_exactly_the_stock() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = runtime.block_on(PostgresStore::start());
    let sale = std::process::Command::new(example::example("flash_sale"))
        .args([
            "--orders",
            "600",
            "--processes",
            "4",
            "--store",
            &store.url(),
        ])
        .output()
        .expect("the example");
    let printed = String::from_utf8_lossy(&sale.stdout);
    let errors = String::from_utf8_lossy(&sale.stderr);
    assert!(sale.status.success(), "{printed}{errors}");
    assert!(
        printed.contains("Nothing was sold twice."),
        "{printed}{errors}"
    );
    let failed = printed.lines().any(|line| {
        let line = line.trim();
        line.starts_with("failed") || line.starts_with("lost")
    });
    assert!(!failed, "{printed}{errors}");
}
