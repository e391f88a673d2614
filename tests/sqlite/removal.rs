//! What becomes of the rows, and of locks whose file is removed.

use std::time::Duration;

use dlock::LockManager;
use dlock_conformance::Store as _;

use crate::SqliteStore;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{connect, had, held, is_busy};
use crate::support::wait::{HANG, until, within};

/// A row that is removed takes its counter along, and a new one does not begin
/// again.
#[tokio::test]
async fn tokens_rise_over_rows_that_were_removed() {
    let store = SqliteStore::start().await;
    let manager = LockManager::connect(store.config()).await;
    let manager = manager.expect("a connection");
    let mut last = None;
    for _ in 0..3 {
        for _ in 0..5 {
            let guard = manager.lock("key").acquire().await.expect("the lock");
            assert!(last.is_none_or(|last| guard.token() > last));
            last = Some(guard.token());
            guard.release().await.expect("the release");
        }
        let records = async || store.records().await.expect("a count");
        until("its row is removed", records, |&records| records == 0).await;
    }
}

/// Who first waits and dies takes nobody's lock along: what it left is removed
/// by others, also if none of them asks for that lock.
#[tokio::test]
async fn what_the_dead_have_left_is_removed() {
    let store = SqliteStore::start().await;
    let manager = LockManager::connect(store.config()).await;
    let manager = manager.expect("a connection");
    had(&manager, "key").await;
    let dead = "INSERT INTO dlock_process VALUES ('dead', unixepoch('subsec') * 1000 + 500);
        INSERT INTO dlock_queue VALUES ('left', 1, 'dead.1', 'w', 'dead');
        INSERT INTO dlock_reader (name, owner, expires_at) VALUES ('left', 'dead.2', 1);
        INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited)
            VALUES ('left', 640, 'w', 'dead.3', 1, 1)";
    sqlx::raw_sql(dead)
        .execute(&mut store.connection().await)
        .await
        .expect("the tables");
    let records = async || store.records().await.expect("a count");
    // Somebody uses the tables.
    had(&manager, "key").await;
    until("nothing is left", records, |&records| records == 0).await;
    let guard = manager.lock("left").acquire().await.expect("the lock");
    assert!(u64::from(guard.token()) > 640, "{:?}", guard.token());
}

/// A file that nobody has open can be copied by itself.
#[tokio::test]
async fn a_process_that_shuts_down_leaves_one_file() {
    // No file is waited for longer than a second when it is closed.
    unless_it_stands_still(Duration::from_millis(500), one_file_is_left).await;
}

async fn one_file_is_left() {
    let store = SqliteStore::start().await;
    let manager = LockManager::connect(store.config()).await;
    let manager = manager.expect("a connection");
    let wal = store.path().with_extension("db-wal");
    let guard = manager.lock("key").acquire().await.expect("the lock");
    assert!(wal.exists());
    drop(guard);
    within(HANG, manager.shutdown()).await;
    assert!(!wal.exists());
    assert!(store.path().exists());
}

/// Those who have it open would go on with it, beside those who open the one that takes its place.
/// Whoever comes first makes the tables.
#[tokio::test]
async fn nobody_goes_on_with_a_file_that_was_removed() {
    let store = SqliteStore::start().await;
    let connected = async || connect(store.config()).await;
    let (held_before, other) = (connected().await, connected().await);
    let lost = held(held_before.lock("key")).await;
    had(&other, "other").await;
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(store.dir.path().join(name)).expect("a file that is open");
    }
    let guard = held(other.lock("key")).await;
    is_busy(held_before.lock("key").try_acquire().await);
    is_busy(connected().await.lock("key").try_acquire().await);
    within(HANG, lost.lost()).await;
    guard.release().await.expect("the release");
    had(&held_before, "key").await;
}
