//! The SQLite store: the conformance suite on a real file, and what only a file
//! can do wrong.

#![cfg(feature = "sqlite")]

#[path = "../support/property.rs"]
mod property;
#[path = "../support/mod.rs"]
mod support;
#[path = "../tables/mod.rs"]
mod tables;

mod refusals;
mod removal;

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use dlock::Config;
use dlock_conformance::{ShownTokens, Store, async_trait, conformance, contenders};
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use support::dir::TempDir;
use support::locks::config;
use support::wait::HANG;
use tables::{Tables, rows, tables};

/// A file of the test's own.
struct SqliteStore {
    dir: TempDir,
    /// Keeps everybody from writing.
    outage: Mutex<Option<SqliteConnection>>,
}

impl SqliteStore {
    fn path(&self) -> PathBuf {
        self.dir.path().join("locks.db")
    }

    /// A connection of the test's own.
    async fn connection(&self) -> SqliteConnection {
        self.connection_that_waits(HANG).await
    }

    /// A connection before there is a file.
    async fn connection_that_makes_it(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path());
        let options = options.create_if_missing(true).busy_timeout(HANG);
        options.connect().await.expect("the test's own file")
    }

    /// The same, for a file that is busy no longer than that.
    async fn connection_that_waits(&self, busy: Duration) -> SqliteConnection {
        SqliteConnectOptions::new()
            .filename(self.path())
            .busy_timeout(busy)
            .connect()
            .await
            .expect("the test's own file")
    }
}

#[async_trait(?Send)]
impl Store for SqliteStore {
    async fn start() -> Self {
        Self {
            dir: TempDir::default(),
            outage: Mutex::default(),
        }
    }

    async fn start_durable() -> Self {
        Self {
            dir: TempDir::default(),
            outage: Mutex::default(),
        }
    }

    fn leaves_out() -> &'static [&'static str] {
        &["late_commands", "cost", "restart"]
    }

    /// Who wants to write to a file asks again and again, and its turn may be
    /// long in coming.
    fn short_ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfTheLast
    }

    /// Paused in the middle of a write, it keeps the file's lock.
    async fn is_stuck(&self) -> bool {
        let mut connection = self.connection_that_waits(Duration::from_millis(300)).await;
        let write = sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK");
        write.execute(&mut connection).await.is_err()
    }

    async fn take_away(&self, key: &str) {
        let taken = sqlx::query("UPDATE dlock_lock SET owner = '', expires_at = 0 WHERE name = ?")
            .bind(key)
            .execute(&mut self.connection().await)
            .await
            .expect("the table of locks");
        assert_eq!(taken.rows_affected(), 1, "nobody held `{key}`");
    }

    /// As a program that does not end its transaction would do. Those who only
    /// read do not notice.
    async fn set_outage(&self, outage: bool) {
        if outage {
            let mut connection = self.connection().await;
            sqlx::raw_sql("BEGIN IMMEDIATE")
                .execute(&mut connection)
                .await
                .expect("the file");
            *self.outage.lock().expect("the outage") = Some(connection);
        } else {
            let connection = self.outage.lock().expect("the outage").take();
            if let Some(mut connection) = connection {
                sqlx::raw_sql("ROLLBACK")
                    .execute(&mut connection)
                    .await
                    .expect("the file");
            }
        }
    }

    fn can_be_read_in_an_outage(&self) -> bool {
        true
    }

    async fn records(&self) -> Option<usize> {
        let mut connection = self.connection().await;
        let mut records = 0;
        for table in ["lock", "reader", "queue", "process"] {
            let count: i64 = sqlx::query_scalar(&format!("SELECT COUNT(*) FROM dlock_{table}"))
                .fetch_one(&mut connection)
                .await
                .expect("the tables");
            records += usize::try_from(count).expect("a count");
        }
        Some(records)
    }
}

impl Tables for SqliteStore {
    const NOW: &'static str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";
    const BEFORE: &'static str = include_str!("before.sql");

    fn upgrade() -> Vec<&'static str> {
        Vec::new()
    }

    fn as_they_are(&self) -> Config {
        config(&self.url())
    }

    async fn execute(&self, sql: &str) -> u64 {
        let mut connection = self.connection().await;
        let done = sqlx::query(sql).execute(&mut connection).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"))
            .rows_affected()
    }

    async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.connection().await;
        let number = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
        number.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let mut connection = self.connection_that_makes_it().await;
        let rows = rows!(&mut connection, sql).await;
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }
}

conformance!(crate::SqliteStore);
contenders!(crate::SqliteStore);
tables!(crate::SqliteStore);
