//! The MySQL store: the conformance suite on a real MariaDB server, and what
//! only that can do wrong.

#![cfg(feature = "mysql")]

#[path = "../databases/mod.rs"]
mod databases;
#[path = "../support/example.rs"]
mod example;
#[path = "../support/property.rs"]
mod property;
#[path = "../support/mod.rs"]
mod support;
#[path = "../tables/mod.rs"]
mod tables;

mod kind;
mod label;
mod refusals;

use std::time::Duration;

use dlock::Config;
use dlock::backend::mysql::MySql;
use dlock_conformance::{conformance, contenders};
use sqlx::{MySqlConnection, MySqlPool};

use databases::server::Server;
use databases::{Database, DatabaseStore, databases};
use kind::MariaDb;
use tables::{far_tables, rows, tables};

type MySqlStore = DatabaseStore<MariaDb>;

impl Database for MariaDb {
    const NOW: &'static str =
        "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)";
    const KEEP_QUEUE: &'static str = "LOCK TABLES dlock_queue WRITE";
    const DENIED: &'static str = "denied";
    const BEFORE: &'static str = include_str!("before.sql");
    const BLOCK: usize = 1;
    /// A commit waits for the disk, and so does its entry in the binary log.
    const WITH_A_LOG: &'static [&'static str] =
        &["--log-bin=log", "--sync-binlog=1", "--binlog-format=ROW"];
    const DURABLE_BY: &'static [(&'static str, &'static str, &'static str)] = &[
        ("innodb_flush_log_at_trx_commit", "0", "1"),
        ("innodb_flush_log_at_trx_commit", "2", "1"),
        ("sync_binlog", "0", "1"),
        ("sync_binlog", "100", "1"),
    ];
    const IS_SET_AT_ONCE: bool = true;
    const READ_ONLY: (&'static str, &'static str) = ("read_only", "1");
    const LOSES_ROWS: &'static str = "ENGINE = Aria";
    const KEEPS_ROWS: &'static str = "ENGINE = InnoDB";
    const WAITING: &'static str = "SELECT COUNT(*) FROM information_schema.processlist
        WHERE db = DATABASE() AND info LIKE '%dlock_lock%' AND id <> CONNECTION_ID()";
    const VERIFIES: &'static str = "ssl-mode=verify_identity";
    const SESSIONS: &'static str = "SELECT CAST(variable_value AS SIGNED)
        FROM information_schema.global_status WHERE variable_name = 'CONNECTIONS'";

    async fn set(server: &Server<Self>, name: &str, value: &str) {
        let set = format!("SET GLOBAL {name} = {value}");
        server.run("mysql", &set).await;
    }

    async fn execute(connection: &mut MySqlConnection, sql: &str) -> sqlx::Result<u64> {
        let done = sqlx::query(sql).execute(connection).await?;
        Ok(done.rows_affected())
    }

    async fn number(connection: &mut MySqlConnection, sql: &str) -> sqlx::Result<i64> {
        sqlx::query_scalar(sql).fetch_one(connection).await
    }

    async fn rows(connection: &mut MySqlConnection, sql: &str) -> sqlx::Result<Vec<Vec<String>>> {
        rows!(connection, sql).await
    }

    fn over(pool: &MySqlPool) -> Config {
        Config::with_backend(MySql::from_pool(pool).create_tables(true))
    }

    fn narrow(url: &str, request_timeout: Duration) -> Config {
        let store = MySql::from_url(url).expect("a valid URL");
        Config::with_backend(store.max_connections(1).request_timeout(request_timeout))
    }

    fn quoted(user: &str) -> String {
        format!("'{user}'")
    }

    fn user_without_rights(user: &str, database: &str) -> String {
        format!(
            "CREATE USER '{user}'@'127.0.0.1' IDENTIFIED BY 'hunter2';
             GRANT SELECT ON {database}.dlock_meta TO '{user}'@'127.0.0.1'"
        )
    }

    fn grant(user: &str, database: &str) -> String {
        let tables = ["lock", "reader", "queue", "process", "meta"];
        let grant = |table| {
            format!(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.dlock_{table}
                 TO '{user}'@'127.0.0.1';"
            )
        };
        tables.map(grant).concat()
    }
}

conformance!(crate::MySqlStore);
contenders!(crate::MySqlStore);
tables!(crate::MySqlStore);
far_tables!(crate::MySqlStore);
databases!(crate::MariaDb);
