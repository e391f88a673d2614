//! The PostgreSQL store: the conformance suite on a real server, and what only
//! a server with sessions can do wrong.

#![cfg(feature = "postgres")]

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

mod durability;
mod fencing;
mod kind;
mod messages;
mod migrating;
mod pooler;
mod refusals;
mod transactions;

use std::time::Duration;

use dlock::Config;
use dlock::backend::postgres::Postgres;
use dlock_conformance::{conformance, contenders};
use sqlx::{PgConnection, PgPool};

use databases::server::DURABLE;
use databases::{Database, DatabaseStore, databases};
use kind::PostgreSql;
use support::wait::until;
use tables::{far_tables, rows, tables};

type PostgresStore = DatabaseStore<PostgreSql>;
type Server = databases::server::Server<PostgreSql>;

impl Database for PostgreSql {
    const NOW: &'static str = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";
    const KEEP_QUEUE: &'static str = "BEGIN; LOCK TABLE dlock_queue";
    const DENIED: &'static str = "permission denied";
    const BEFORE: &'static str = include_str!("before.sql");
    const BLOCK: usize = 0;
    const WITH_A_LOG: &'static [&'static str] = DURABLE;
    const DURABLE_BY: &'static [(&'static str, &'static str, &'static str)] =
        &[("fsync", "off", "on"), ("full_page_writes", "off", "on")];
    const IS_SET_AT_ONCE: bool = false;
    const READ_ONLY: (&'static str, &'static str) = ("default_transaction_read_only", "on");
    const LOSES_ROWS: &'static str = "SET UNLOGGED";
    const KEEPS_ROWS: &'static str = "SET LOGGED";
    const WAITING: &'static str = "SELECT COUNT(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'active' AND query LIKE '%dlock_lock%'
            AND pid <> pg_backend_pid()";
    const VERIFIES: &'static str = "sslmode=verify-full";
    const SESSIONS: &'static str =
        "SELECT sessions FROM pg_stat_database WHERE datname = current_database()";

    async fn set(server: &Server, name: &str, value: &str) {
        let set = format!("ALTER SYSTEM SET {name} = {value}");
        server.run("postgres", &set).await;
        server.run("postgres", "SELECT pg_reload_conf()").await;
        // A session that is made from now on has learned of it.
        let mut connection = server.connection("postgres").await;
        let show = format!("SHOW {name}");
        let shown = async || -> String {
            let shown = sqlx::query_scalar(&show).fetch_one(&mut connection).await;
            shown.expect("the setting")
        };
        until("it is set", shown, |shown| shown == value).await;
    }

    async fn execute(connection: &mut PgConnection, sql: &str) -> sqlx::Result<u64> {
        let done = sqlx::query(sql).execute(connection).await?;
        Ok(done.rows_affected())
    }

    async fn number(connection: &mut PgConnection, sql: &str) -> sqlx::Result<i64> {
        sqlx::query_scalar(sql).fetch_one(connection).await
    }

    async fn rows(connection: &mut PgConnection, sql: &str) -> sqlx::Result<Vec<Vec<String>>> {
        rows!(connection, sql).await
    }

    fn over(pool: &PgPool) -> Config {
        Config::with_backend(Postgres::from_pool(pool).create_tables(true))
    }

    fn narrow(url: &str, request_timeout: Duration) -> Config {
        let store = Postgres::from_url(url).expect("a valid URL");
        Config::with_backend(store.max_connections(1).request_timeout(request_timeout))
    }

    fn quoted(user: &str) -> String {
        format!("\"{user}\"")
    }

    fn user_without_rights(user: &str, _: &str) -> String {
        format!("CREATE ROLE {user} LOGIN")
    }

    fn grant(user: &str, _: &str) -> String {
        format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON dlock_lock, dlock_reader, dlock_queue, \
             dlock_process, dlock_meta TO {user}"
        )
    }
}

conformance!(crate::PostgresStore);
contenders!(crate::PostgresStore);
tables!(crate::PostgresStore);
far_tables!(crate::PostgresStore);
databases!(crate::PostgreSql);
