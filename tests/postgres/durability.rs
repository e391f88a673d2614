//! Who takes a lock waits for the disk, whatever its session would do.

use std::time::Duration;

use dlock::{Config, FencingToken, LockManager};
use dlock_conformance::{Store as _, connect, process};

use crate::PostgresStore;
use crate::Server;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::held;
use crate::support::wait::until;
use crate::tables::Tables as _;

/// Nothing but a transaction that asks for it waits for the disk, and nobody
/// writes what was confirmed before that for ten seconds.
#[rustfmt::skip]
const LAZY: &[&str] = &[
    "-c", "synchronous_commit=off", "-c", "wal_writer_delay=10s",
    "-c", "wal_writer_flush_after=2GB", "-c", "autovacuum=off",
];

fn config(server: &Server) -> Config {
    let url = server.url("postgres", server.port()) + "?create_tables=true";
    Config::from_url(&url).expect("a valid URL").fenced(true)
}

/// By the way that a free lock is taken, and by the one for all else.
async fn tokens(manager: &LockManager) -> [FencingToken; 2] {
    let ttl = Duration::from_secs(3);
    let write = held(manager.lock("write").ttl(ttl).renew(false)).await;
    let read = held(manager.lock("read").read().ttl(ttl).renew(false)).await;
    [write.token(), read.token()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_outlives_a_crash_whatever_its_session_waits_for() {
    let mut server = Server::start(LAZY).await;
    let before = {
        let manager = connect(config(&server)).await;
        // The tables.
        server.run("postgres", "CHECKPOINT").await;
        let before = tokens(&manager).await;
        server.kill();
        before
    };
    server.restart().await;
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
        let ttl = 4 * store.short_ttl();
        unless_it_stands_still(ttl / 4, async || {
            store.execute("DELETE FROM seen").await;
            let manager = process(&store).await;
            let write = held(manager.lock("key").ttl(ttl)).await;
            let read = held(manager.lock("other").read()).await;
            // Each of them writes at least once; a renewal does too.
            let writes = async || {
                let writes = store.number("SELECT COUNT(*) FROM seen").await;
                (writes, write.is_held())
            };
            let enough = |&(writes, is_held): &(i64, bool)| writes >= 4 || !is_held;
            let (writes, _) = until("they write", writes, enough).await;
            assert!(writes >= 4, "the lease was lost before it was renewed");
            let others = format!("SELECT COUNT(*) FROM seen WHERE waits <> '{waits}'");
            assert_eq!(store.number(&others).await, 0, "set to {set}");
            for guard in [write, read] {
                guard.release().await.expect("the release");
            }
        })
        .await;
    }
}
