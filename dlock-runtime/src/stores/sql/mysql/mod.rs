//! The `mysql://` store: MySQL and MariaDB.
//!
//! - Transactions are `READ COMMITTED`, whatever the server's default is, except in `raise_rows`.
//!   Each statement must see what was committed before it began. And this level locks no gaps
//!   between rows, in which two sessions that insert a row would wait for each other
//!   (<https://dev.mysql.com/doc/refman/8.0/en/innodb-transaction-isolation-levels.html>).
//! - Names are compared as bytes, since a collation may take two keys for equal.
//! - The database cannot notify a client of a release, so waiters look again and again.

mod errors;

use std::time::Duration;

use sqlx::mysql::MySqlConnectOptions;

use super::Sql;
use super::database::{Database, Location, Meaning, Pace, by_driver};
use super::server::{self, Server};
use super::tables::Notifies;
use crate::backend::Protocol;
use crate::backend::origin::written;

/// Locks in a database of MySQL 8.0 or MariaDB 10.5, or later.
///
/// ```
/// # use dlock_runtime as dlock;
/// use dlock::backend::mysql::MySql;
///
/// let store = MySql::from_url("mysql://shop:secret@127.0.0.1/shop")?.max_connections(8);
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
///
/// Its tables must exist, or are created with `create_tables`.
pub type MySql = Sql<MySqlDatabase>;

/// What is particular to MySQL and MariaDB.
#[derive(Clone, Copy, Debug)]
pub struct MySqlDatabase;

impl Database for MySqlDatabase {
    const NAME: &'static str = "mysql";
    const PROTOCOL: Option<Protocol> = Some(Protocol::MySql);
    const WORDS: &'static str = include_str!("words.sql");
    const DURABLE_WITH: &'static str = "`innodb_flush_log_at_trx_commit` to 1 in its server, \
                                        `sync_binlog` to 1 if it has a binary log, and dlock's \
                                        tables to InnoDB";
    const PACE: Pace = Pace {
        shortest: Duration::from_millis(1),
        longest: Duration::from_millis(500),
    };
    // When a statement fails, InnoDB often undoes that statement only: the transaction keeps its
    // rows until the client sends `ROLLBACK`
    // (<https://dev.mysql.com/doc/refman/8.0/en/innodb-error-handling.html>). A client that is
    // paused at this moment would keep the locks of others. So several locks are taken by
    // statements that are transactions of their own.
    const EACH_COMMITS: bool = true;
    const TLS_ADVICE: &'static str =
        "see `ssl-mode`, `ssl-ca`, `ssl-cert` and `ssl-key` in the URL";

    type Sql = sqlx::MySql;

    fn location(options: &MySqlConnectOptions) -> Location {
        let database = options.get_database().unwrap_or_default();
        let (host, port) = (options.get_host(), options.get_port());
        server::location(host, port, options.get_socket(), database)
    }

    fn prepare(options: MySqlConnectOptions) -> MySqlConnectOptions {
        options.statement_cache_capacity(0)
    }

    /// The driver gives connections no name. The label shows in the list of processes while a
    /// statement runs or waits for a row, and in the log of slow statements.
    fn mark(label: &str) -> String {
        format!("/* {} */ ", written(label))
    }

    /// In hexadecimal: whether a backslash escapes depends on the session's settings
    /// (`NO_BACKSLASH_ESCAPES`).
    fn literal(out: &mut String, text: &str) {
        out.push_str("x'");
        for byte in text.bytes() {
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
            }
        }
        out.push('\'');
    }

    fn meaning(error: &sqlx::Error) -> Option<Meaning> {
        errors::meaning(error)
    }

    by_driver!();
}

impl Server for MySqlDatabase {
    const TITLE: &'static str = "MySQL";
    const EXAMPLE: &'static str = "mysql://user:password@host:3306/database";
    const PARAMETERS: &'static [&'static str] = &[
        "sslmode",
        "ssl-mode",
        "sslca",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
        "charset",
        "collation",
        "socket",
        "timezone",
        "time-zone",
        "statement-cache-capacity",
    ];
}

impl Notifies for MySqlDatabase {}
