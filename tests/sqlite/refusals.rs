//! What is wrong with a file, and what to do about it.

use std::time::Duration;

use dlock::backend::sqlite::Sqlite;
use dlock::backend::sqlx::SqlitePool;
use dlock::backend::sqlx::sqlite::SqliteConnectOptions;
use dlock::{Config, LockError, LockManager};
use dlock_conformance::Store as _;

use crate::SqliteStore;
use crate::support::dir::TempDir;
use crate::support::wait::{HANG, eventually, within};

async fn refused(url: &str) -> LockError {
    match Config::from_url(url) {
        Ok(config) => within(HANG, LockManager::connect(config))
            .await
            .map(drop)
            .expect_err(url),
        Err(error) => error,
    }
}

#[tokio::test]
async fn what_is_no_file_is_told() {
    let dir = TempDir::default();
    let other = dir.path().join("other");
    std::fs::write(
        &other,
        "not a database, but long enough to be taken for one".repeat(20),
    )
    .expect("a file");
    let other = format!("sqlite:{}", other.display());
    let nowhere = format!("sqlite:{}/nowhere/locks.db", dir.path().display());
    for (url, says) in [
        ("sqlite:", "names no file"),
        ("sqlite::memory:", "`memory:`"),
        ("sqlite://", "names no file"),
        ("sqlite:locks.db?mode=ro", "a path only"),
        (&other, "no SQLite database"),
        (&nowhere, "directory must be there"),
    ] {
        let error = refused(url).await;
        assert!(
            matches!(error, LockError::Config { .. }),
            "{url}: {error:?}"
        );
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}

/// Other tables of these names are not taken for dlock's, nor changed.
#[tokio::test]
async fn other_tables_are_told() {
    let store = SqliteStore::start().await;
    let mut connection = store.connection_that_makes_it().await;
    dlock::backend::sqlx::raw_sql("CREATE TABLE dlock_meta (version INTEGER PRIMARY KEY, a TEXT)")
        .execute(&mut connection)
        .await
        .expect("a table");
    let error = LockManager::connect(store.config()).await.map(drop);
    let error = error.expect_err("another table");
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("`dlock_`"), "{error}");
}

#[tokio::test]
async fn who_writes_for_long_is_looked_for() {
    let store = SqliteStore::start().await;
    let config = store.config().request_timeout(Duration::from_millis(300));
    let manager = LockManager::connect(config).await.expect("a connection");
    store.set_outage(true).await;
    let error = within(HANG, manager.lock("key").acquire()).await.map(drop);
    let error = error.expect_err("a file that is locked");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("another process"), "{error}");
}

/// The pool is not used up, and may end.
#[tokio::test]
async fn a_pool_is_as_good_as_a_url() {
    let store = SqliteStore::start().await;
    let by_url = LockManager::connect(store.config())
        .await
        .expect("a connection");
    let url = format!("sqlite:{}", store.path().display());
    let pool = SqlitePool::connect(&url).await.expect("a pool");
    let sqlite = Sqlite::from_pool(&pool).expect("a file");
    let by_pool = LockManager::connect(Config::with_backend(sqlite))
        .await
        .expect("a connection");
    pool.close().await;
    let guard = by_pool.lock("key").acquire().await.expect("the lock");
    let busy = by_url.lock("key").try_acquire().await;
    assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
    guard.release().await.expect("the release");

    let pool = SqlitePool::connect("sqlite::memory:")
        .await
        .expect("a pool");
    let error = Sqlite::from_pool(&pool).expect_err("nobody could share it");
    assert!(error.to_string().contains("`memory:`"), "{error}");
}

/// A manager over a file with this setting.
async fn with_pragma(
    store: &SqliteStore,
    name: &'static str,
    value: &'static str,
) -> Result<LockManager, LockError> {
    let options = SqliteConnectOptions::new().filename(store.path());
    let options = options.create_if_missing(true).pragma(name, value);
    let pool = SqlitePool::connect_lazy_with(options);
    let sqlite = Sqlite::from_pool(&pool).expect("a file");
    let sqlite = sqlite.request_timeout(Duration::from_secs(2));
    LockManager::connect(Config::with_backend(sqlite)).await
}

/// A file that may not grow is what a full disk is to SQLite.
#[tokio::test]
async fn a_full_disk_is_unavailable() {
    let store = SqliteStore::start().await;
    let manager = with_pragma(&store, "max_page_count", "20").await;
    let manager = manager.expect("room for the tables");
    let mut held = Vec::new();
    let error = loop {
        let key = format!("{}{}", "long".repeat(100), held.len());
        match manager.lock(key).acquire().await {
            Ok(guard) => held.push(guard),
            Err(error) => break error,
        }
        assert!(held.len() < 1_000, "it is never full");
    };
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("make room"), "{error}");
    // What is held is given back, and then there is room again.
    for guard in held {
        guard.release().await.expect("the release");
    }
    let healed = async || manager.lock("key").run(async {}).await.ok();
    eventually("there is room again", healed).await;
}

#[tokio::test]
async fn a_file_that_is_read_only_is_unavailable() {
    let store = SqliteStore::start().await;
    let error = with_pragma(&store, "query_only", "ON").await.map(drop);
    let error = error.expect_err("nothing can be written");
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("writable"), "{error}");
}
