//! A shop in a database: a row for each article, which keeps the highest token
//! that it has seen.

use std::time::Duration;

use async_trait::async_trait;
use dlock::FencingToken;

use super::{ARTICLES, Progress, ShopError};
use crate::report::Receipt;

/// How long a task may wait for a connection, behind all others of its process.
const LIMIT: Duration = Duration::from_secs(120);

/// A database as this shop uses it.
pub(crate) trait Database: Sized {
    type Pool: Send + Sync;

    async fn connect(url: &str) -> Result<Self::Pool, sqlx::Error>;
}

pub(crate) struct Shop<D: Database> {
    pool: D::Pool,
    /// The tables of this sale end in it.
    sale: String,
}

impl<D: Database> Shop<D> {
    pub(crate) async fn connect(url: &str, sale: &str) -> Result<Self, ShopError> {
        Ok(Self {
            pool: D::connect(url).await?,
            sale: sale.replace('-', "_"),
        })
    }

    /// Puts the names of this sale's tables into a statement.
    fn sql(&self, statement: &str) -> String {
        statement.replace("$sale", &self.sale)
    }
}

impl From<sqlx::Error> for ShopError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Numbers are signed in SQL.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Without a lock there is no token: the lowest that there is.
fn number_of(token: Option<FencingToken>) -> i64 {
    signed(token.map_or(0, u64::from))
}

/// The same statements for each database: `sqlx` knows the concrete types only.
macro_rules! shop {
    ($database:ty) => {
        #[async_trait]
        impl super::Shop for Shop<$database> {
            async fn fill(&self, stock: u64) -> Result<(), ShopError> {
                for table in [
                    "stock_$sale (sku BIGINT PRIMARY KEY, pieces BIGINT NOT NULL, token BIGINT NOT NULL)",
                    "book_$sale (number BIGINT PRIMARY KEY, receipt VARCHAR(200) NOT NULL)",
                    "orders_$sale (next BIGINT NOT NULL, sold BIGINT NOT NULL)",
                ] {
                    let create = self.sql(&format!("CREATE TABLE {table}"));
                    sqlx::query(&create).execute(&self.pool).await?;
                }
                for sku in 0..ARTICLES {
                    let (sku, stock) = (signed(sku as u64), signed(stock));
                    sqlx::query(&self.sql(&format!(
                        "INSERT INTO stock_$sale (sku, pieces, token) VALUES ({sku}, {stock}, 0)"
                    )))
                    .execute(&self.pool)
                    .await?;
                }
                let orders = self.sql("INSERT INTO orders_$sale (next, sold) VALUES (0, 0)");
                sqlx::query(&orders).execute(&self.pool).await?;
                Ok(())
            }

            async fn stock(
                &self,
                sku: usize,
                token: Option<FencingToken>,
            ) -> Result<u64, ShopError> {
                let (sku, token) = (signed(sku as u64), number_of(token));
                let mut transaction = self.pool.begin().await?;
                // From here on, an older token is refused.
                let seen = sqlx::query(&self.sql(&format!(
                    "UPDATE stock_$sale SET token = {token} WHERE sku = {sku} AND token <= {token}"
                )))
                .execute(&mut *transaction)
                .await?;
                if seen.rows_affected() == 0 {
                    return Err(ShopError::Outdated);
                }
                let pieces: i64 = sqlx::query_scalar(
                    &self.sql(&format!("SELECT pieces FROM stock_$sale WHERE sku = {sku}")),
                )
                .fetch_one(&mut *transaction)
                .await?;
                transaction.commit().await?;
                Ok(unsigned(pieces))
            }

            async fn set_stock(
                &self,
                left: u64,
                token: Option<FencingToken>,
                sale: &Receipt,
            ) -> Result<(), ShopError> {
                let (sku, token) = (signed(sale.sku as u64), number_of(token));
                let (left, order) = (signed(left), signed(sale.order));
                let mut transaction = self.pool.begin().await?;
                let written = sqlx::query(&self.sql(&format!(
                    "UPDATE stock_$sale SET pieces = {left}, token = {token} \
                     WHERE sku = {sku} AND token <= {token}"
                )))
                .execute(&mut *transaction)
                .await?;
                if written.rows_affected() == 0 {
                    return Err(ShopError::Outdated);
                }
                sqlx::query(&self.sql(&format!(
                    "INSERT INTO book_$sale (number, receipt) VALUES ({order}, '{sale}')"
                )))
                .execute(&mut *transaction)
                .await?;
                sqlx::query(&self.sql("UPDATE orders_$sale SET sold = sold + 1"))
                    .execute(&mut *transaction)
                    .await?;
                transaction.commit().await?;
                Ok(())
            }

            async fn next_order(&self) -> Result<u64, ShopError> {
                let mut transaction = self.pool.begin().await?;
                sqlx::query(&self.sql("UPDATE orders_$sale SET next = next + 1"))
                    .execute(&mut *transaction)
                    .await?;
                let next: i64 = sqlx::query_scalar(&self.sql("SELECT next FROM orders_$sale"))
                    .fetch_one(&mut *transaction)
                    .await?;
                transaction.commit().await?;
                Ok(unsigned(next - 1))
            }

            async fn book(&self, receipt: &Receipt) -> Result<(), ShopError> {
                let number = signed(receipt.order);
                let booked = sqlx::query(&self.sql(&format!(
                    "INSERT INTO book_$sale (number, receipt) VALUES ({number}, '{receipt}')"
                )))
                .execute(&self.pool)
                .await;
                match booked {
                    // It is in the book already.
                    Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Ok(()),
                    booked => Ok(booked.map(drop)?),
                }
            }

            async fn progress(&self) -> Result<Progress, ShopError> {
                let (booked, sold): (i64, i64) = sqlx::query_as(
                    &self.sql("SELECT (SELECT COUNT(*) FROM book_$sale), sold FROM orders_$sale"),
                )
                .fetch_one(&self.pool)
                .await?;
                let (booked, sold) = (unsigned(booked), unsigned(sold));
                Ok(Progress { booked, sold })
            }

            async fn close(&self) -> Result<Vec<Receipt>, ShopError> {
                let pages: Vec<String> =
                    sqlx::query_scalar(&self.sql("SELECT receipt FROM book_$sale"))
                        .fetch_all(&self.pool)
                        .await?;
                for table in ["stock", "book", "orders"] {
                    sqlx::query(&self.sql(&format!("DROP TABLE {table}_$sale")))
                        .execute(&self.pool)
                        .await?;
                }
                Ok(pages.iter().filter_map(|page| page.parse().ok()).collect())
            }
        }
    };
}

/// A file.
#[cfg(feature = "sqlite")]
pub(crate) struct Sqlite;

#[cfg(feature = "sqlite")]
impl Database for Sqlite {
    type Pool = sqlx::SqlitePool;

    async fn connect(url: &str) -> Result<Self::Pool, sqlx::Error> {
        use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};
        let options: SqliteConnectOptions = url.parse()?;
        let options = options
            .busy_timeout(LIMIT)
            .synchronous(SqliteSynchronous::Normal);
        SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(LIMIT)
            .connect_with(options)
            .await
    }
}

#[cfg(feature = "sqlite")]
shop!(Sqlite);

/// A server.
#[cfg(feature = "postgres")]
pub(crate) struct Postgres;

#[cfg(feature = "postgres")]
impl Database for Postgres {
    type Pool = sqlx::PgPool;

    async fn connect(url: &str) -> Result<Self::Pool, sqlx::Error> {
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(4);
        let options = options.acquire_timeout(LIMIT);
        options.connect(without_parameters(url)).await
    }
}

#[cfg(feature = "postgres")]
shop!(Postgres);

/// MySQL or MariaDB.
#[cfg(feature = "mysql")]
pub(crate) struct MySql;

#[cfg(feature = "mysql")]
impl Database for MySql {
    type Pool = sqlx::MySqlPool;

    async fn connect(url: &str) -> Result<Self::Pool, sqlx::Error> {
        let options = sqlx::mysql::MySqlPoolOptions::new().max_connections(4);
        let options = options.acquire_timeout(LIMIT);
        options.connect(without_parameters(url)).await
    }
}

#[cfg(feature = "mysql")]
shop!(MySql);

/// Those behind the `?` are for the locks.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn without_parameters(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}
