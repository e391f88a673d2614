//! `docs/migrating.md`: ShedLock's row by the statements of the page, and advisory locks.

use sqlx::{Connection as _, PgConnection};

use crate::Server;

/// From Redis to here and back, while services run.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_service_changes_its_store_while_it_runs() {
    use crate::support::moving::{Place, there_and_back};
    use crate::support::redis::RedisServer;

    const HIGHEST: &str = "SELECT GREATEST(COALESCE(MAX(token), 0), (SELECT floor FROM dlock_meta)) \
        + 63 FROM dlock_lock";
    assert!(include_str!("../../docs/migrating.md").contains(HIGHEST));
    let redis = RedisServer::start().await;
    let server = Server::shared().await;
    let database = server.database().await;
    let url = format!(
        "{}?create_tables=true",
        server.url(&database, server.port())
    );
    drop(crate::support::locks::connect(dlock::Config::from_url(&url).expect("a URL")).await);
    let in_redis = Place {
        url: redis.url(),
        highest: async || redis.command(&["GET", "dlock:token"]).await,
    };
    let in_tables = Place {
        url,
        highest: async || {
            let mut connection = server.connection(&database).await;
            let highest: i64 = sqlx::query_scalar(HIGHEST)
                .fetch_one(&mut connection)
                .await
                .expect("a number");
            highest.unsigned_abs()
        },
    };
    there_and_back(in_redis, in_tables).await;
}

/// As ShedLock's own page has it.
const TABLE: &str =
    "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL,
    locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";

/// The two statements of the page.
struct ShedLock {
    connection: PgConnection,
    take: &'static str,
    give_back: &'static str,
}

impl ShedLock {
    async fn open(server: &Server, database: &str) -> Self {
        let page = include_str!("../../docs/migrating.md");
        let (_, from) = page.split_once("```sql\n").expect("its statements");
        let (sql, _) = from.split_once("```").expect("their end");
        let (take, rest) = sql.split_once(";\n").expect("the first");
        let (give_back, rest) = rest.split_once(";\n").expect("the second");
        assert_eq!(rest, "", "two statements");
        server.run(database, TABLE).await;
        Self {
            connection: server.connection(database).await,
            take,
            give_back,
        }
    }

    async fn take(&mut self, who: &str, seconds: f64) -> bool {
        let take = sqlx::query(self.take)
            .bind("report")
            .bind(who)
            .bind(seconds);
        let row = take.fetch_optional(&mut self.connection).await;
        row.expect("a statement").is_some()
    }

    /// Whether it was this one's.
    async fn give_back(&mut self, who: &str, at_least: f64) -> bool {
        let give = sqlx::query(self.give_back)
            .bind("report")
            .bind(who)
            .bind(at_least);
        let given = give.execute(&mut self.connection).await;
        given.expect("a statement").rows_affected() == 1
    }

    /// Whether Java, by its own statement, would have it now.
    async fn is_free_in_java(&mut self) -> bool {
        let free = "SELECT lock_until <= timezone('utc', CURRENT_TIMESTAMP) FROM shedlock";
        let free = sqlx::query_scalar(free).fetch_one(&mut self.connection);
        free.await.expect("its row")
    }
}

#[tokio::test]
async fn the_row_of_shedlock_is_taken_as_the_page_says() {
    let server = Server::shared().await;
    let database = server.database().await;
    let mut rows = ShedLock::open(&server, &database).await;

    assert!(rows.take("one", 600.0).await, "nobody was there before");
    assert!(!rows.is_free_in_java().await);
    assert!(!rows.take("another", 600.0).await);
    assert!(!rows.give_back("another", 0.0).await);
    assert!(rows.give_back("one", 0.0).await);
    assert!(rows.is_free_in_java().await);

    assert!(rows.take("another", 600.0).await, "the row is there now");
    assert!(rows.give_back("another", 600.0).await);
    assert!(!rows.is_free_in_java().await, "`lockAtLeastFor`");
    assert!(!rows.take("one", 600.0).await);
}

/// Whether a session that asks for it has the advisory lock.
async fn is_had(connection: &mut PgConnection) -> bool {
    let had = sqlx::query_scalar("SELECT pg_try_advisory_lock(42)").fetch_one(connection);
    had.await.expect("a statement")
}

#[tokio::test]
async fn advisory_locks_are_other_locks() {
    let server = Server::shared().await;
    let database = server.database().await;
    let mut before = server.connection(&database).await;
    let mut after = server.connection(&database).await;

    let mut transaction = after.begin().await.expect("a transaction");
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(42_i64)
        .execute(&mut *transaction)
        .await
        .expect("a statement");
    assert!(!is_had(&mut before).await);

    let url = server.url(&database, server.port()) + "?create_tables=true";
    let manager = dlock::LockManager::connect(dlock::Config::from_url(&url).expect("a URL"));
    let manager = manager.await.expect("a database");
    let held = manager
        .lock("42")
        .try_acquire()
        .await
        .expect("a lock of dlock's");
    transaction.rollback().await.expect("the end");
    assert!(is_had(&mut before).await);
    held.release().await.expect("the release");
}
