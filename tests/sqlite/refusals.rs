//! What is wrong with a file, and what to do about it.

use std::time::Duration;

use dlock::backend::Level;
use dlock::backend::sqlite::Sqlite;
use dlock::{Config, LockError, LockManager};
use dlock_conformance::Store as _;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

use crate::SqliteStore;
use crate::support::dir::TempDir;
use crate::support::locks::{connect, connecting, healed, held, impatient, is_busy};
use crate::support::locks::{is_misconfigured, is_unavailable, says, shown};
use crate::support::wait::{HANG, until, within};
use crate::tables::before::Old;

#[tokio::test]
async fn what_is_no_file_is_told() {
    let dir = TempDir::default();
    let other = dir.path().join("other");
    let text = "not a database, but long enough to be taken for one".repeat(20);
    std::fs::write(&other, text).expect("a file");
    let other = format!("sqlite:{}", other.display());
    let nowhere = format!("sqlite:{}/nowhere/locks.db", dir.path().display());
    for (url, word) in [
        ("sqlite:", "names no file"),
        ("sqlite::memory:", "`memory:`"),
        ("sqlite://", "names no file"),
        ("sqlite:locks.db?mode=ro", "a path only"),
        // SQLite would keep it in memory, and each process have its own.
        ("sqlite:file:locks.db%3Fmode=memory", "leave out `file:`"),
        ("sqlite:locks%00.db", "NUL"),
        ("sqlite:/nowhere/a%0Ab/locks.db", r"a\nb"),
        (&other, "no SQLite database"),
        (&nowhere, "directory must be there"),
    ] {
        says(&is_misconfigured(connecting(url, HANG).await), &[word]);
    }
}

/// Other tables of these names are not taken for dlock's, nor changed.
#[tokio::test]
async fn other_tables_are_told() {
    let store = SqliteStore::start().await;
    let mut connection = store.connection_that_makes_it().await;
    let make = sqlx::raw_sql("CREATE TABLE dlock_meta (version INTEGER PRIMARY KEY, a TEXT)");
    make.execute(&mut connection).await.expect("a table");
    let error = is_misconfigured(LockManager::connect(store.config()).await);
    says(&error, &["`dlock_`"]);
}

#[tokio::test]
async fn tables_of_the_version_before_are_upgraded() {
    let store = SqliteStore::start().await;
    let old = Old::of(&store);
    old.makes_its_tables().await;
    old.takes("old", 1).await.expect("the lock");
    let all = tokio::join!(connect(store.config()), connect(store.config()));
    is_busy(all.0.lock("old").try_acquire().await);
    let guard = held(all.0.lock("key")).await;
    let holder = shown(&all.1, "key").await.holders.remove(0);
    assert!(
        holder.process.is_some() && holder.since.is_some(),
        "{holder:?}"
    );
    guard.release().await.expect("the release");
}

/// dlock sets what it needs.
#[tokio::test]
async fn a_look_at_a_file_finds_nothing_to_do() {
    let store = SqliteStore::start().await;
    let found = connect(store.config()).await.examine().await;
    let checks: Vec<_> = found.iter().map(|one| one.check).collect();
    assert_eq!(checks, ["version", "writes", "persistence"]);
    assert!(found.iter().all(|one| one.level == Level::Ok), "{found:?}");
}

#[tokio::test]
async fn who_writes_for_long_is_looked_for() {
    let store = SqliteStore::start().await;
    let short = Duration::from_millis(300);
    let manager = impatient(|| store.config().request_timeout(short)).await;
    store.set_outage(true).await;
    let told = async || is_unavailable(within(HANG, manager.lock("key").acquire()).await);
    // On a busy machine the time may be over before the file has been asked for.
    let says_who = |error: &LockError| error.to_string().contains("another process");
    says(
        &until("it says who", told, says_who).await,
        &["another process"],
    );
}

/// The pool is not used up, and may end.
#[tokio::test]
async fn a_pool_is_as_good_as_a_url() {
    let store = SqliteStore::start().await;
    let by_url = connect(store.config()).await;
    let url = format!("sqlite:{}", store.path().display());
    let pool = SqlitePool::connect(&url).await.expect("a pool");
    let sqlite = Sqlite::from_pool(&pool).expect("a file");
    let by_pool = connect(Config::with_backend(sqlite)).await;
    pool.close().await;
    let guard = held(by_pool.lock("key")).await;
    is_busy(by_url.lock("key").try_acquire().await);
    guard.release().await.expect("the release");

    let pool = SqlitePool::connect("sqlite::memory:").await;
    let pool = pool.expect("a pool");
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
    // What is wrong with the file is told at once.
    let sqlite = sqlite.request_timeout(HANG / 2);
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
    says(&error, &["make room"]);
    // What is held is given back, and then there is room again.
    for guard in held {
        guard.release().await.expect("the release");
    }
    healed(&manager).await;
}

#[tokio::test]
async fn a_file_that_is_read_only_is_unavailable() {
    let store = SqliteStore::start().await;
    let error = is_unavailable(with_pragma(&store, "query_only", "ON").await);
    says(&error, &["writable"]);
}
