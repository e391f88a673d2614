//! What no lock in a database could do without: a row that is written, and deleted.

use std::future::Future;
use std::time::Duration;

use sqlx::{MySqlPool, PgPool, SqlitePool, query};

use crate::Locker;

/// An upsert and a delete, each a prepared statement that is committed by itself. It
/// excludes nobody.
#[derive(Clone, Debug)]
pub enum BareSql {
    /// With a session for each of 64 tasks.
    Postgres(PgPool),
    /// The same.
    MySql(MySqlPool),
    /// With one connection, as a file has one writer.
    Sqlite(SqlitePool),
}

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS bare (name VARCHAR(64) PRIMARY KEY, owner VARCHAR(64))";

/// The upsert and the delete, as PostgreSQL and SQLite say them.
const ON_CONFLICT: [&str; 2] = [
    "INSERT INTO bare (name, owner) VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET owner = excluded.owner",
    "DELETE FROM bare WHERE name = $1 AND owner = $2",
];

/// The same in MySQL.
const ON_DUPLICATE: [&str; 2] = [
    "INSERT INTO bare (name, owner) VALUES (?, ?)
        ON DUPLICATE KEY UPDATE owner = VALUES(owner)",
    "DELETE FROM bare WHERE name = ? AND owner = ?",
];

/// Runs them over a pool of one kind.
macro_rules! pair {
    ($pool:expr, $key:expr, $body:expr, $pair:expr) => {{
        let [upsert, delete] = $pair;
        let written = query(upsert).bind($key).bind("me").execute($pool).await;
        written.expect("a row");
        let value = $body.await;
        let deleted = query(delete).bind($key).bind("me").execute($pool).await;
        deleted.expect("an answer");
        value
    }};
}

/// The settings of a pool of one kind.
macro_rules! pool {
    ($options:ty, $most:literal) => {
        <$options>::new()
            .max_connections($most)
            .test_before_acquire(false)
            .acquire_timeout(Duration::from_secs(60))
    };
}

impl Locker for BareSql {
    const NAME: &'static str = "bare pair";

    async fn connect(url: &str) -> Self {
        let made = if url.starts_with("postgres:") {
            let pool = pool!(sqlx::postgres::PgPoolOptions, 64).connect(url).await;
            Self::Postgres(pool.expect("a connection"))
        } else if url.starts_with("mysql:") {
            let pool = pool!(sqlx::mysql::MySqlPoolOptions, 64).connect(url).await;
            Self::MySql(pool.expect("a connection"))
        } else {
            let pool = pool!(sqlx::sqlite::SqlitePoolOptions, 1).connect(url).await;
            let pool = pool.expect("a file");
            // As dlock's grants are: on disk before it goes on.
            query("PRAGMA synchronous = EXTRA")
                .execute(&pool)
                .await
                .expect("a setting");
            Self::Sqlite(pool)
        };
        let table = match &made {
            Self::Postgres(pool) => query(TABLE).execute(pool).await.map(drop),
            Self::MySql(pool) => query(TABLE).execute(pool).await.map(drop),
            Self::Sqlite(pool) => query(TABLE).execute(pool).await.map(drop),
        };
        table.expect("a table");
        made
    }

    async fn section<T: Send>(&self, key: &str, body: impl Future<Output = T> + Send) -> T {
        match self {
            Self::Postgres(pool) => pair!(pool, key, body, ON_CONFLICT),
            Self::MySql(pool) => pair!(pool, key, body, ON_DUPLICATE),
            Self::Sqlite(pool) => pair!(pool, key, body, ON_CONFLICT),
        }
    }
}
