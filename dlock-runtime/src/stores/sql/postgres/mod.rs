//! The `postgres://` store.
//!
//! - Each script is sent as one message of the simple query protocol, so that it also works through
//!   a pooler that gives every transaction another session.
//! - Transactions are `READ COMMITTED`, whatever the server's default is: each statement must see
//!   what was committed before it began.
//! - Waiters are notified by `NOTIFY`, on one channel for each process, over one connection. Where
//!   notifications do not come through, waiters look often instead.

mod errors;
mod listen;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::postgres::PgConnectOptions;

use super::Sql;
use super::database::{Connection, Database, Location, Meaning, Pace, Row, by_driver};
use super::server::{self, Server};
use super::tables::{Notifies, Tables};
use super::work::{Args, SingleStatement, Statement, whole_ms};
use crate::backend::Protocol;

/// Locks in a PostgreSQL database, 12 or later.
///
/// ```
/// # use dlock_runtime as dlock;
/// use dlock::backend::postgres::Postgres;
///
/// let store = Postgres::from_url("postgres://shop:secret@127.0.0.1/shop")?.max_connections(8);
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
///
/// Its tables must exist, or are created with `create_tables`.
pub type Postgres = Sql<PostgresDatabase>;

/// What is particular to PostgreSQL.
#[derive(Clone, Copy, Debug)]
pub struct PostgresDatabase;

impl Database for PostgresDatabase {
    const NAME: &'static str = "postgres";
    const PROTOCOL: Option<Protocol> = Some(Protocol::Postgres);
    const WORDS: &'static str = include_str!("words.sql");
    const DURABLE_WITH: &'static str =
        "`fsync` and `full_page_writes` to on in its server, and dlock's tables to LOGGED";
    /// For servers whose notifications do not come through.
    const PACE: Pace = Pace {
        shortest: Duration::from_millis(5),
        longest: Duration::from_millis(500),
    };
    const QUICK: &'static [SingleStatement] = &SingleStatement::ALL;
    const TLS_ADVICE: &'static str = "see `sslmode`, `sslrootcert`, `sslcert` and `sslkey` in \
                                      the URL";
    /// While it has too many connections or is starting, `sqlx` tries to connect until the time is
    /// over, and does not say why.
    const UNREACHED_ADVICE: &'static str = "check that it runs, that the URL names its host and \
                                            port, and that it takes more connections: its log says \
                                            whether it has too many for its max_connections, or \
                                            for a limit of this user";

    type Sql = sqlx::Postgres;

    fn location(options: &PgConnectOptions) -> Location {
        let database = options.get_database().unwrap_or(options.get_username());
        let (host, port) = (options.get_host(), options.get_port());
        server::location(host, port, options.get_socket(), database)
    }

    fn prepare(options: PgConnectOptions) -> PgConnectOptions {
        // A pooler refuses startup parameters that it does not know.
        options.extra_float_digits(None).statement_cache_capacity(0)
    }

    fn named(options: PgConnectOptions, label: &str) -> PgConnectOptions {
        match options.get_application_name() {
            None => options.application_name(label),
            Some(_) => options,
        }
    }

    /// As `E'…'`, whose escapes do not depend on the server's settings.
    fn literal(out: &mut String, text: &str) {
        out.push_str("E'");
        out.push_str(&text.replace('\\', r"\\").replace('\'', "''"));
        out.push('\'');
    }

    fn meaning(error: &sqlx::Error) -> Option<Meaning> {
        errors::meaning(error)
    }

    /// Prepares by SQL. In the extended protocol, `sqlx` names statements by numbers (`sqlx_s_1`),
    /// and behind a pooler the session may have another client's statement of that name.
    async fn quick(
        connection: &mut Connection<Self>,
        what: SingleStatement,
        statement: &Statement,
        args: &Args<'_>,
        is_prepared: &mut bool,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let columns = what.columns();
        let text = message(statement, args, *is_prepared);
        let mut answer = Self::run(connection, &text, columns).await;
        // A pooler may have given this transaction another session.
        let is_there = answer.as_ref().err().and_then(errors::is_prepared);
        if let Some(is_there) = is_there {
            let text = message(statement, args, is_there);
            answer = Self::run(connection, &text, columns).await;
        }
        *is_prepared |= answer.is_ok();
        answer
    }

    by_driver!();
}

/// The statement with its values, as one message, which is one transaction. The limits come first,
/// because preparing takes a lock on the table too.
fn message(statement: &Statement, args: &Args<'_>, is_prepared: bool) -> String {
    let Statement { name, text, limits } = statement;
    let mut message = limits.clone();
    // Writing to a `String` does not fail.
    if !is_prepared {
        let _ = write!(message, "PREPARE \"{name}\" (TEXT, TEXT, BIGINT) AS {text}");
    }
    let _ = write!(message, "EXECUTE \"{name}\" (");
    PostgresDatabase::literal(&mut message, args.key);
    message.push_str(", ");
    PostgresDatabase::literal(&mut message, &args.owner);
    let _ = write!(message, ", {})", whole_ms(args.ttl));
    message
}

impl Server for PostgresDatabase {
    const TITLE: &'static str = "PostgreSQL";
    const EXAMPLE: &'static str = "postgres://user:password@host:5432/database";
    const PARAMETERS: &'static [&'static str] = &[
        "sslmode",
        "ssl-mode",
        "sslrootcert",
        "ssl-root-cert",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "application_name",
        "options",
        "statement-cache-capacity",
    ];
}

impl Notifies for PostgresDatabase {
    fn listen(tables: Arc<Tables<Self>>) -> Option<BoxFuture<'static, ()>> {
        Some(Box::pin(listen::listen(tables)))
    }
}
