//! Tokens are strict where the server keeps what it confirms, and are not said
//! to be so elsewhere.

use dlock::backend::TokenTier;
use dlock::{Config, LockError, LockManager};
use dlock_conformance::{Store as _, connect, process};

use crate::MySqlStore;
use crate::Server;
use crate::support::wait::{eventually, until};
use crate::tables::Tables as _;

/// A commit waits for the disk, and so does its entry in the binary log.
const WITH_A_LOG: &[&str] = &["--log-bin=log", "--sync-binlog=1", "--binlog-format=ROW"];

fn config(server: &Server) -> Config {
    let url = server.url("mysql", server.port()) + "?create_tables=true";
    Config::from_url(&url).expect("a valid URL").fenced(true)
}

async fn is_had(manager: &LockManager) -> bool {
    match manager.lock("key").fenced(true).acquire().await {
        Ok(lock) => {
            lock.release().await.expect("the release");
            true
        }
        Err(error @ LockError::Unsupported { .. }) => {
            let said = error.to_string();
            assert!(said.contains("innodb_flush_log_at_trx_commit"), "{said}");
            false
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// A manager that runs already, and one that connects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_worth_what_the_server_keeps() {
    let server = Server::start(WITH_A_LOG).await;
    let manager = connect(config(&server)).await;
    for (name, lazy) in [
        ("innodb_flush_log_at_trx_commit", "0"),
        ("innodb_flush_log_at_trx_commit", "2"),
        ("sync_binlog", "0"),
        ("sync_binlog", "100"),
    ] {
        assert!(is_had(&manager).await, "before {name} is {lazy}");
        server
            .run("mysql", &format!("SET GLOBAL {name} = {lazy}"))
            .await;
        assert!(!is_had(&manager).await, "{name} is {lazy}");
        let error = LockManager::connect(config(&server)).await.map(drop);
        let error = error.expect_err("tokens that may go back");
        assert!(matches!(error, LockError::Unsupported { .. }), "{error:?}");
        let any = connect(config(&server).fenced(false)).await;
        assert_eq!(any.capabilities().tokens, TokenTier::BestEffort);
        any.lock("key").run(async {}).await.expect("any token");
        server.run("mysql", &format!("SET GLOBAL {name} = 1")).await;
        let had = async || is_had(&manager).await;
        until("it is had again", had, |&had| had).await;
    }
}

/// Others neither undo what was not ended nor keep a row for one alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_another_engine_make_no_strict_tokens() {
    let store = MySqlStore::start_durable().await;
    process(&store).await.shutdown().await;
    store.execute("ALTER TABLE dlock_lock ENGINE = Aria").await;
    let manager = process(&store).await;
    assert!(!is_had(&manager).await);
    store
        .execute("ALTER TABLE dlock_lock ENGINE = InnoDB")
        .await;
    eventually("tokens are strict", async || {
        is_had(&manager).await.then_some(())
    })
    .await;
}
