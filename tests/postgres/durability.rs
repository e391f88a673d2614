//! Tokens are strict where the server keeps what it confirms, and are not said
//! to be so elsewhere.

use std::time::Duration;

use dlock::backend::TokenTier;
use dlock::backend::sqlx;
use dlock::{Config, FencingToken, LockError, LockManager};
use dlock_conformance::{Store as _, connect, process};

use crate::PostgresStore;
use crate::Server;
use crate::databases::server::DURABLE;
use crate::support::wait::{HANG, eventually, until, within};
use crate::tables::Tables as _;

/// Nothing but a transaction that asks for it waits for the disk, and nobody
/// writes what was confirmed before that for ten seconds.
const LAZY: &[&str] = &[
    "-c",
    "synchronous_commit=off",
    "-c",
    "wal_writer_delay=10s",
    "-c",
    "wal_writer_flush_after=2GB",
    "-c",
    "autovacuum=off",
];

fn config(server: &Server) -> Config {
    let url = server.url("postgres", server.port()) + "?create_tables=true";
    Config::from_url(&url).expect("a valid URL").fenced(true)
}

/// By the way that a free lock is taken, and by the one for all else.
async fn tokens(manager: &LockManager) -> [FencingToken; 2] {
    let ttl = Duration::from_secs(1);
    let write = manager.lock("write").ttl(ttl).renew(false).acquire();
    let read = manager.lock("read").read().ttl(ttl).renew(false).acquire();
    let write = within(HANG, write).await.expect("the lock");
    let read = within(HANG, read).await.expect("the lock");
    [write.token(), read.token()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_outlives_a_crash_whatever_its_session_waits_for() {
    let server = Server::start(LAZY).await;
    let before = {
        let manager = connect(config(&server)).await;
        // The tables.
        server.run("postgres", "CHECKPOINT").await;
        let before = tokens(&manager).await;
        server.kill();
        before
    };
    server.start_again().await;
    let manager = connect(config(&server)).await;
    let after = tokens(&manager).await;
    for (after, before) in after.into_iter().zip(before) {
        assert!(after > before, "{after} after {before}");
    }
}

/// What else a session waits for, such as a replica, it goes on waiting for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_waits_for_the_disk_and_for_no_less_than_it_would() {
    let store = PostgresStore::start().await;
    process(&store).await.shutdown().await;
    let seen = "CREATE TABLE seen (waits TEXT NOT NULL);
        CREATE FUNCTION see() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO seen VALUES (current_setting('synchronous_commit'));
            RETURN NULL;
        END $$;
        CREATE TRIGGER see AFTER INSERT OR UPDATE ON dlock_lock
            FOR EACH ROW WHEN (NEW.owner <> '') EXECUTE FUNCTION see()";
    store.server.run(&store.database, seen).await;
    for (set, waits) in [
        ("off", "on"),
        ("local", "local"),
        ("remote_write", "remote_write"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let database = &store.database;
        let alter = format!("ALTER DATABASE {database} SET synchronous_commit = {set}");
        store.server.run("postgres", &alter).await;
        store.execute("DELETE FROM seen").await;
        let manager = process(&store).await;
        let ttl = store.short_ttl();
        let write = manager.lock("key").ttl(ttl).acquire().await;
        let read = manager.lock("other").read().acquire().await;
        // Each of them writes at least once; a renewal does too.
        let enough = async || store.number("SELECT COUNT(*) FROM seen").await;
        until("they write", enough, |&writes| writes >= 4).await;
        let others = format!("SELECT COUNT(*) FROM seen WHERE waits <> '{waits}'");
        assert_eq!(store.number(&others).await, 0, "set to {set}");
        for guard in [write, read] {
            let guard = guard.expect("the lock");
            guard.release().await.expect("the release");
        }
    }
}

async fn is_refused(manager: &LockManager) {
    let error = manager.lock("key").fenced(true).acquire().await;
    let error = error.map(drop).expect_err("tokens that may go back");
    assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("fsync"), "{error}");
    assert_eq!(manager.capabilities().tokens, TokenTier::BestEffort);
    manager
        .lock("key")
        .run(async {})
        .await
        .expect("any token will do");
}

/// A manager that runs already: its next lock shows what the server does now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_worth_what_the_server_keeps() {
    let server = Server::start(DURABLE).await;
    let manager = connect(config(&server)).await;
    let set = async |name: &str, value: &str| {
        let set = format!("ALTER SYSTEM SET {name} = {value}");
        server.run("postgres", &set).await;
        server.run("postgres", "SELECT pg_reload_conf()").await;
        // Each session learns of it by itself: one that is made from now on has.
        let mut connection = server.connection("postgres").await;
        let shown = async || {
            let show = format!("SHOW {name}");
            let shown: String = sqlx::query_scalar(&show)
                .fetch_one(&mut connection)
                .await
                .expect("the setting");
            shown
        };
        until("it is set", shown, |shown| shown == value).await;
    };
    let had = async || {
        let lock = manager.lock("key").fenced(true).acquire().await;
        match lock {
            Ok(lock) => {
                lock.release().await.expect("the release");
                true
            }
            Err(LockError::Unsupported { .. }) => false,
            Err(error) => panic!("{error:?}"),
        }
    };
    for name in ["fsync", "full_page_writes"] {
        until("it is had", had, |&had| had).await;
        set(name, "off").await;
        until("it is refused", had, |&had| !had).await;
        is_refused_by_a_new_manager(&server).await;
        set(name, "on").await;
    }
    until("it is had again", had, |&had| had).await;
    server
        .run("postgres", "ALTER TABLE dlock_lock SET UNLOGGED")
        .await;
    is_refused_by_a_new_manager(&server).await;
}

async fn is_refused_by_a_new_manager(server: &Server) {
    let error = LockManager::connect(config(server)).await.map(drop);
    let error = error.expect_err("tokens that may go back");
    assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
    is_refused(&connect(config(server).fenced(false)).await).await;
}

/// Whose tables were wrong learns that they are mended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_logged_again_make_tokens_strict() {
    let store = PostgresStore::start_durable().await;
    process(&store).await.shutdown().await;
    store.execute("ALTER TABLE dlock_meta SET UNLOGGED").await;
    let manager = process(&store).await;
    is_refused(&manager).await;
    store.execute("ALTER TABLE dlock_meta SET LOGGED").await;
    eventually("tokens are strict", async || {
        let lock = manager.lock("key").fenced(true).acquire().await;
        lock.ok().map(drop)
    })
    .await;
}
