//! Tokens are strict where the server keeps what it confirms, and are not said
//! to be so elsewhere.

use dlock::backend::{Level, TokenTier};
use dlock::{Config, LockError, LockManager};
use dlock_conformance::{Store as _, connect, process};

use super::server::Server;
use super::{Database, DatabaseStore};
use crate::support::wait::{eventually, until};
use crate::tables::Tables as _;

fn config<D: Database>(server: &Server<D>) -> Config {
    let url = server.url(D::OWN, server.port()) + "?create_tables=true";
    Config::from_url(&url).expect("a valid URL").fenced(true)
}

/// Whether a strict token is to be had; if not, the error says what to set.
async fn is_had<D: Database>(manager: &LockManager) -> bool {
    match manager.lock("key").fenced(true).acquire().await {
        Ok(lock) => {
            lock.release().await.expect("the release");
            true
        }
        Err(error @ LockError::Unsupported { .. }) => {
            let setting = D::DURABLE_BY[0].0;
            assert!(error.to_string().contains(setting), "{error}");
            false
        }
        Err(error) => panic!("{error:?}"),
    }
}

async fn is_refused_by_a_new_manager<D: Database>(server: &Server<D>) {
    let error = LockManager::connect(config(server)).await.map(drop);
    let error = error.expect_err("tokens that may go back");
    assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
    let any = connect(config(server).fenced(false)).await;
    assert_eq!(any.capabilities().tokens, TokenTier::BestEffort);
    any.lock("key").run(async {}).await.expect("any token");
}

/// A manager that runs already, and one that connects.
pub(crate) async fn tokens_are_worth_what_the_server_keeps<D: Database>() {
    let server = Server::<D>::start(D::WITH_A_LOG).await;
    let manager = connect(config(&server)).await;
    let had = async || is_had::<D>(&manager).await;
    for &(name, lazy, strict) in D::DURABLE_BY {
        until("it is had", had, |&had| had).await;
        D::set(&server, name, lazy).await;
        if D::IS_SET_AT_ONCE {
            assert!(!had().await, "{name} is {lazy}");
        } else {
            // Each session learns of it by itself.
            until("it is refused", had, |&had| !had).await;
        }
        is_refused_by_a_new_manager(&server).await;
        D::set(&server, name, strict).await;
    }
    until("it is had again", had, |&had| had).await;
}

/// What `examine` says of this: how it is, and what to do.
pub(crate) async fn found(config: Config, check: &str) -> (Level, String) {
    let manager = connect(config.fenced(false)).await;
    let found = manager.examine().await;
    let mut found = found.iter().filter(|one| one.check == check);
    let one = found.next().expect("it was looked at");
    assert_eq!(found.next(), None);
    (one.level, one.message.clone())
}

/// Also where nothing has become worse since the manager connected.
pub(crate) async fn what_a_crash_may_undo_is_found<D: Database>() {
    let server = Server::<D>::start(D::WITH_A_LOG).await;
    assert_eq!(found(config(&server), "persistence").await.0, Level::Ok);
    for &(name, lazy, strict) in D::DURABLE_BY {
        D::set(&server, name, lazy).await;
        let (level, message) = found(config(&server), "persistence").await;
        assert_eq!(level, Level::Warn, "{name} is {lazy}: {message}");
        assert!(message.contains(&format!("`{name}`")), "{message}");
        D::set(&server, name, strict).await;
        assert_eq!(
            found(config(&server), "persistence").await.0,
            Level::Ok,
            "{name} is {strict}"
        );
    }
    let alter = format!("ALTER TABLE dlock_meta {}", D::LOSES_ROWS);
    server.run(D::OWN, &alter).await;
    let (level, message) = found(config(&server), "persistence").await;
    assert_eq!(level, Level::Warn, "{alter}: {message}");
    assert!(message.contains("dlock's tables"), "{message}");
}

/// Locks belong where the writes go.
pub(crate) async fn a_server_that_takes_no_writes_is_found<D: Database>() {
    let server = Server::<D>::start(D::WITH_A_LOG).await;
    let (level, _) = found(config(&server), "writes").await;
    assert_eq!(level, Level::Ok);
    let (name, value) = D::READ_ONLY;
    D::set(&server, name, value).await;
    let url = server.url(D::OWN, server.port());
    let config = Config::from_url(&url).expect("a valid URL");
    let (level, message) = found(config, "writes").await;
    assert_eq!(level, Level::Warn, "{message}");
    for says in ["read-only", "name the primary"] {
        assert!(message.contains(says), "{message}");
    }
}

/// What a crash may empty, or does not keep a row for one alone. Whose tables were
/// wrong learns that they are mended.
pub(crate) async fn tables_that_may_lose_rows_make_no_strict_tokens<D: Database>() {
    let store = DatabaseStore::<D>::start_durable().await;
    process(&store).await.shutdown().await;
    for table in ["dlock_lock", "dlock_meta"] {
        let alter = async |storage| {
            let alter = format!("ALTER TABLE {table} {storage}");
            store.execute(&alter).await;
        };
        alter(D::LOSES_ROWS).await;
        let manager = process(&store).await;
        assert!(!is_had::<D>(&manager).await, "{table}");
        alter(D::KEEPS_ROWS).await;
        eventually("tokens are strict", async || {
            is_had::<D>(&manager).await.then_some(())
        })
        .await;
        manager.shutdown().await;
    }
}
