//! What is wrong with a database, and not told by others as PostgreSQL does.

use std::time::Duration;

use dlock::backend::Level;
use dlock::{Config, LockError};

use crate::databases::Database as _;
use crate::databases::durability::found;
use crate::databases::refusals::{connect, fresh};
use crate::databases::server::DURABLE;
use crate::kind::give_to_its_user;
use crate::support::calm::unless_it_stands_still;
use crate::support::locks::{self, had, impatient, is_misconfigured, is_unavailable, says};
use crate::support::log::Log;
use crate::support::wait::{HANG, eventually, until, within};
use crate::{PostgreSql, Server};

/// A standby is like that, and so may a server with a full disk be.
#[tokio::test]
async fn a_database_that_is_read_only_is_unavailable() {
    let (server, database, url) = fresh::<PostgreSql>().await;
    let manager = connect(&format!("{url}?create_tables=true"))
        .await
        .expect("the tables");
    let read_only = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
    server.run("postgres", &read_only).await;
    // It is tried until the time is over.
    let short = || {
        let config = Config::from_url(&url).expect("a valid URL");
        config.request_timeout(Duration::from_secs(2))
    };
    let manager_now = impatient(short).await;
    let told = async || is_unavailable(within(HANG, manager_now.lock("key").acquire()).await);
    // On a busy machine the time may be over before the database has said anything.
    let says_why = |error: &LockError| error.to_string().contains("read-only");
    until("it says why", told, says_why).await;
    drop(manager);
}

/// One of a server that is made of what this one has kept.
#[tokio::test]
async fn a_standby_is_found() {
    let mut server = Server::start(DURABLE).await;
    let url = server.url("postgres", server.port());
    connect(&format!("{url}?create_tables=true"))
        .await
        .map(drop)
        .expect("the tables");
    let signal = server.dir().join("data/standby.signal");
    std::fs::write(&signal, "").expect("a file");
    give_to_its_user(&[&signal]);
    server.restart().await;
    let config = Config::from_url(&url).expect("a valid URL");
    let (level, message) = found(config, "writes").await;
    assert_eq!(level, Level::Warn, "{message}");
    assert!(message.contains("standby"), "{message}");
}

/// The driver tries again until the time is over, so the advice has to name it.
#[tokio::test]
async fn too_many_connections_are_named() {
    let (server, database, url) = fresh::<PostgreSql>().await;
    let user = format!("one_{database}");
    let make = format!("CREATE ROLE {user} LOGIN CONNECTION LIMIT 1");
    server.run(&database, &make).await;
    let url = url.replace("postgres@", &format!("{user}@"));
    let only = sqlx::PgPool::connect(&url).await.expect("a connection");
    let _only = only.acquire().await.expect("the only one");
    let limit = Duration::from_secs(2);
    // The time may be over before the database has said anything.
    unless_it_stands_still(limit / 20, async || {
        let told = locks::connecting(&url, limit).await;
        says(&is_unavailable(told), &["too many", "max_connections"]);
    })
    .await;
}

/// Others of its keys are had.
#[tokio::test]
async fn a_key_that_its_encoding_does_not_have_is_a_wrong_setting() {
    let (server, database, url) = fresh::<PostgreSql>().await;
    let make = format!("CREATE DATABASE {database}_latin1 ENCODING 'LATIN1' TEMPLATE template0");
    server.run("postgres", &make).await;
    let url = url.replace(&database, &format!("{database}_latin1"));
    let manager = connect(&format!("{url}?create_tables=true")).await;
    let manager = manager.expect("the tables");
    had(&manager, "caf\u{e9}").await;
    let refused = within(HANG, manager.lock("\u{43a}").try_acquire()).await;
    says(&is_misconfigured(refused), &["'UTF8'"]);
}

/// Its locks are had and given back all the same, but rows stay behind.
#[tokio::test]
async fn tables_that_cannot_be_cleaned_are_told() {
    let log = Log::warnings();
    let (server, database, url) = fresh::<PostgreSql>().await;
    let made = connect(&format!("{url}?create_tables=true")).await;
    made.expect("the tables");
    let user = format!("user_{database}");
    for change in [
        PostgreSql::user_without_rights(&user, &database),
        PostgreSql::grant(&user, &database),
        format!("REVOKE DELETE ON dlock_lock FROM {user}"),
    ] {
        server.run(&database, &change).await;
    }
    let url = url.replace("postgres@", &format!("{user}@"));
    let manager = connect(&url).await.expect("it may connect");
    had(&manager, "key").await;
    eventually("it is told what is missing", async || {
        let told = log.lines_with("cannot look after its tables");
        let is_ours = |line: &String| line.contains(&database) && line.contains("GRANT SELECT");
        told.iter().any(is_ours).then_some(())
    })
    .await;
}
