//! What is wrong with a database, and what to do about it.

use std::sync::Arc;
use std::time::Duration;

use dlock::backend::mysql::MySql;
use dlock::backend::sqlx::MySqlPool;
use dlock::{Config, LockError, LockManager};

use crate::server::Server;
use crate::support::wait::{HANG, within};

async fn connect(url: &str) -> Result<LockManager, LockError> {
    let config = Config::from_url(url)?.request_timeout(Duration::from_secs(2));
    within(HANG, LockManager::connect(config)).await
}

async fn refused(url: &str) -> LockError {
    connect(url).await.map(drop).expect_err(url)
}

async fn fresh() -> (Arc<Server>, String, String) {
    let server = Server::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    (server, database, url)
}

fn is_config(error: &LockError, says: &[&str]) {
    assert!(matches!(error, LockError::Config { .. }), "{error:?}");
    for text in says {
        assert!(error.to_string().contains(text), "{text}: {error}");
    }
}

#[tokio::test]
async fn missing_and_other_tables_are_told() {
    let (server, database, url) = fresh().await;
    let error = refused(&url).await;
    is_config(
        &error,
        &[&*database, "docs/stores/sql.md", "?create_tables=true"],
    );
    // Several at once, as when a service is deployed.
    let create = format!("{url}?create_tables=true");
    let all = tokio::join!(connect(&create), connect(&create), connect(&create));
    for manager in [all.0, all.1, all.2] {
        let lock = manager.expect("the tables").lock("key");
        within(HANG, lock.run(async {})).await.expect("the lock");
    }
    connect(&url).await.expect("they stay");
    server
        .run(&database, "UPDATE dlock_meta SET version = 7")
        .await;
    is_config(&refused(&url).await, &["version 7"]);
    server
        .run(&database, "ALTER TABLE dlock_lock DROP COLUMN waited")
        .await;
    is_config(&refused(&url).await, &["waited", "compare them"]);
}

#[tokio::test]
async fn a_user_without_rights_is_told_what_to_grant() {
    let (server, database, url) = fresh().await;
    connect(&format!("{url}?create_tables=true"))
        .await
        .expect("the tables");
    let user = format!("'u_{database}'@'127.0.0.1'");
    server
        .run(
            "mysql",
            &format!(
                "CREATE USER {user} IDENTIFIED BY 'hunter2';
                 GRANT SELECT ON {database}.dlock_meta TO {user}"
            ),
        )
        .await;
    let url = url.replace("root@", &format!("u_{database}:hunter2@"));
    let error = refused(&url).await;
    is_config(&error, &["denied", "GRANT SELECT"]);
    assert!(!format!("{error} {error:?}").contains("hunter2"));
    for table in ["lock", "reader", "queue", "process", "meta"] {
        let grant =
            format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.dlock_{table} TO {user}");
        server.run("mysql", &grant).await;
    }
    let lock = connect(&url).await.expect("its rights").lock("key");
    within(HANG, lock.run(async {})).await.expect("the lock");
}

#[tokio::test]
async fn a_wrong_address_or_name_is_told_without_the_password() {
    let (server, _, _) = fresh().await;
    let port = server.port();
    for (url, says) in [
        (format!("mysql://u:hunter2@127.0.0.1:{port}/mysql"), "'u'"),
        (format!("mysql://root@127.0.0.1:{port}/nowhere"), "nowhere"),
        (
            "mysql://root:hunter2@127.0.0.1:1/x".to_owned(),
            "127.0.0.1:1",
        ),
        (
            "mysql://root:hunter2@host:port/x".to_owned(),
            "mysql://user",
        ),
    ] {
        let error = refused(&url).await;
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(says), "{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        if let Ok(config) = Config::from_url(&url) {
            assert!(!format!("{config:?}").contains("hunter2"));
        }
    }
}

/// Bodies that have taken up the whole pool wait for a lock; its holder gives
/// it back all the same.
#[tokio::test]
async fn a_pool_is_not_used_up() {
    let (_server, _, url) = fresh().await;
    let pool = MySqlPool::connect(&url).await.expect("a pool");
    let mysql = MySql::from_pool(&pool).create_tables(true);
    let manager = LockManager::connect(Config::with_backend(mysql))
        .await
        .expect("a connection");
    let guard = manager.lock("key").acquire().await.expect("the lock");
    let mut all = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        all.push(pool.acquire().await.expect("a connection"));
    }
    let waiting = tokio::spawn(manager.lock("key").acquire());
    guard.release().await.expect("the release");
    drop(
        within(HANG, waiting)
            .await
            .expect("no panic")
            .expect("the lock"),
    );
}
