//! `docs/fencing.md`: its statements and its script refuse a lower token.

use redis::{RedisResult, Script};
use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;

use crate::block;
use crate::support::redis::RedisServer;

const PAGE: &str = "docs/fencing.md";

/// The three statements of the page, on a table of their own.
struct Stock {
    pool: SqlitePool,
    read: String,
    write: String,
    upsert: String,
}

impl Stock {
    async fn open() -> Self {
        let sql = block(PAGE, "sql");
        let statements: Vec<_> = sql.split_inclusive(';').map(str::to_owned).collect();
        let [read, write, upsert, rest] = &statements[..] else {
            panic!("three statements, not {statements:?}")
        };
        assert_eq!(rest.trim(), "");
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .expect("a database");
        sqlx::query("CREATE TABLE stock (sku TEXT PRIMARY KEY, fence BIGINT, pieces BIGINT)")
            .execute(&pool)
            .await
            .expect("a table");
        Self {
            pool,
            read: read.clone(),
            write: write.clone(),
            upsert: upsert.clone(),
        }
    }

    async fn read(&self, token: i64) -> Option<i64> {
        let read = sqlx::query_scalar(&self.read).bind("mug").bind(token);
        read.fetch_optional(&self.pool).await.expect("a statement")
    }

    /// Whether it was written.
    async fn write(&self, token: i64, pieces: i64) -> bool {
        self.change(&self.write, token, pieces).await
    }

    async fn upsert(&self, token: i64, pieces: i64) -> bool {
        self.change(&self.upsert, token, pieces).await
    }

    async fn change(&self, statement: &str, token: i64, pieces: i64) -> bool {
        let change = sqlx::query(statement).bind("mug").bind(token).bind(pieces);
        let changed = change.execute(&self.pool).await.expect("a statement");
        changed.rows_affected() == 1
    }
}

#[tokio::test]
async fn the_statements_refuse_a_lower_token() {
    let stock = Stock::open().await;
    assert_eq!(stock.read(1).await, None, "the row is not there yet");
    assert!(stock.upsert(2, 10).await);

    assert_eq!(stock.read(1).await, None);
    assert_eq!(stock.read(2).await, Some(10));
    assert!(!stock.write(1, 9).await);
    assert!(stock.write(2, 9).await);
    assert!(stock.write(2, 9).await, "one holder writes several times");

    // Reading raises the mark.
    assert_eq!(stock.read(3).await, Some(9));
    assert!(!stock.write(2, 8).await);
    assert!(!stock.upsert(2, 8).await);
    assert!(stock.write(3, 8).await);
    assert!(stock.upsert(4, 7).await);
    assert!(!stock.write(3, 6).await);
    assert_eq!(stock.read(4).await, Some(7));
}

#[tokio::test]
async fn the_script_refuses_a_lower_token() {
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    let script = Script::new(&block(PAGE, "lua"));
    let mut show = async |token: u64, write: Option<&str>| -> RedisResult<Option<String>> {
        let mut call = script.key("fence");
        call.key("stock").arg(token);
        if let Some(write) = write {
            call.arg(write);
        }
        call.invoke_async(&mut connection).await
    };
    // Among them two that are one number to Lua.
    let rising = [9, 10, (1 << 53), (1 << 53) + 1, u64::MAX];
    assert_eq!(show(0, None).await.expect("nothing there"), None);
    for (index, token) in rising.into_iter().enumerate() {
        let mine = token.to_string();
        let before = show(token, None).await.expect("a newer token");
        assert_eq!(
            before,
            index.checked_sub(1).map(|index| rising[index].to_string())
        );
        for lower in [0].into_iter().chain(rising).take(index + 1) {
            for write in [None, Some("late")] {
                let error = show(lower, write).await.expect_err("a lower token");
                assert_eq!(error.code(), Some("OUTDATED"), "{error}");
            }
        }
        for _ in 0..2 {
            assert_eq!(
                show(token, Some(&mine)).await.expect("mine"),
                Some(mine.clone())
            );
        }
    }
}
