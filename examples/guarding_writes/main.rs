//! A row that guards itself: it keeps the highest fencing token that it has
//! seen, and a holder that comes late changes nothing.
//!
//! ```sh
//! cargo run --example guarding_writes --features postgres -- postgres://user@host/database
//! ```
//!
//! It sells one piece of a stock of ten. While it waits for the payment (a line
//! on its standard input), pause it (`kill -STOP`), let another one sell, wake
//! the first (`kill -CONT`), and pay: its write is refused.

use std::io::BufRead as _;
use std::num::TryFromIntError;
use std::time::Duration;

use dlock::backend::postgres::Postgres;
use dlock::{Config, FencingToken, LockError, current, distributed_lock};
use sqlx::PgPool;

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("the database: {0}")]
    Database(#[from] sqlx::Error),
    #[error("nothing is left")]
    SoldOut,
    #[error("a token that its column cannot hold: {0}")]
    Token(#[from] TryFromIntError),
    #[error("refused: somebody newer was here")]
    Outdated,
}

/// The body goes on after a loss, like one that was paused and has not noticed yet. The ttl is
/// short so that a short pause is enough to lose the lock; keep the default of 30 seconds in a
/// service.
#[distributed_lock(key = "stock:<sku>", ttl = "6s", on_lost = "continue")]
async fn sell(pool: &PgPool, sku: &str) -> Result<i64, ShopError> {
    let token = i64::try_from(current().map_or(FencingToken::NONE, |held| held.token()))?;

    // Raises the mark and reads, in one statement.
    let pieces: Option<i64> = sqlx::query_scalar(
        "UPDATE guarded_stock SET fence = $2 WHERE sku = $1 AND fence <= $2 RETURNING pieces",
    )
    .bind(sku)
    .bind(token)
    .fetch_optional(pool)
    .await?;
    let pieces = pieces.ok_or(ShopError::Outdated)?;
    let left = pieces.checked_sub(1).filter(|left| *left >= 0);
    let left = left.ok_or(ShopError::SoldOut)?;
    println!("{pieces} there, with token {token}; waiting for the payment");
    payment().await;

    // Compares the mark and writes, in one statement: there is no moment
    // between the two.
    let written = sqlx::query(
        "UPDATE guarded_stock SET pieces = $3, fence = $2 WHERE sku = $1 AND fence <= $2",
    )
    .bind(sku)
    .bind(token)
    .bind(left)
    .execute(pool)
    .await?;
    match written.rows_affected() {
        0 => Err(ShopError::Outdated),
        _ => Ok(left),
    }
}

/// A line of somebody's, or the end of them.
async fn payment() {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().lock().lines().next());
    // Whatever it says.
    let _ = read.await;
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let url = std::env::args().nth(1).ok_or("name a postgres:// URL")?;
    let pool = PgPool::connect(&url).await?;
    for statement in [
        "CREATE TABLE IF NOT EXISTS guarded_stock \
         (sku TEXT PRIMARY KEY, pieces BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0)",
        "INSERT INTO guarded_stock (sku, pieces) VALUES ('blue-mug', 10) ON CONFLICT DO NOTHING",
    ] {
        sqlx::query(statement).execute(&pool).await?;
    }
    // The locks are where the stock is, with connections of their own.
    let locks = Postgres::from_pool(&pool).create_tables(true);
    // Three request timeouts fit into the ttl, so that one silent connection costs no lock.
    let locks = locks.request_timeout(Duration::from_secs(2));
    let config = Config::with_backend(locks).timeout(Duration::from_secs(60));
    dlock::init(config).await?;
    let sold = sell(&pool, "blue-mug").await;
    dlock::shutdown().await;
    println!("sold, {} left", sold?);
    Ok(())
}
