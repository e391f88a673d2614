//! The `postgres://` store.
//!
//! - Scripts go out by the simple query protocol, one message each, so that
//!   they work through a pooler that gives every transaction another session.
//! - `READ COMMITTED`, whatever the server's default is: each statement has to
//!   see what was committed before it began.
//! - Waiters are told by `NOTIFY`, on one channel for each process, over one
//!   connection. Where that does not come through they look often instead.

mod errors;
mod listen;

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Pool};

use super::Sql;
use super::database::{Database, fetch_and_cell};
use super::errors::Meaning;
use super::notifications::{Notifications, Pace};
use super::pooled::own_pool;
use super::script::Dialect;
use super::url::take_parameter;
use crate::backend::{BackendError, BackendErrorKind, Protocol, Servers};
use crate::limits;
use crate::stores::address::Address;

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
/// Its tables have to be there, or are made with
/// `create_tables`.
pub type Postgres = Sql<PostgresDatabase>;

/// A PostgreSQL database.
#[derive(Clone)]
pub struct PostgresDatabase {
    options: PgConnectOptions,
    /// The settings and hooks of a pool.
    pool: PgPoolOptions,
    create_tables: bool,
    max_connections: u32,
}

impl fmt::Debug for PostgresDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Postgres {
    /// The database at `postgres://[user[:password]@]host[:port]/database`, with
    /// the parameters that `sqlx` knows (`?sslmode=…`), and
    /// `?create_tables=true`. Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood. The message never holds a part of it.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let (url, create) = take_parameter(url, "create_tables")?;
        let options = PgConnectOptions::from_str(&url).map_err(|_| {
            BackendError::new(
                BackendErrorKind::Config,
                "not a URL of PostgreSQL; write postgres://user:password@host:5432/database, and \
                 what is special in the password percent-encoded",
            )
        })?;
        let pool = PgPoolOptions::new();
        Ok(Self::with(options, pool).create_tables(create))
    }

    /// The database of a pool, with the pool's settings and hooks. The
    /// connections are others: those of the pool may be taken up by bodies that
    /// wait for a lock, while its holder needs one to give it back.
    #[must_use]
    pub fn from_pool(pool: &Pool<sqlx::Postgres>) -> Self {
        let options = (*pool.connect_options()).clone();
        Self::with(options, pool.options().clone())
    }

    /// Makes the tables if they are not there, when connecting. Off by default:
    /// a service has no right to do that as a rule, and `docs/stores/sql.md` has
    /// the SQL for those who have it.
    #[must_use]
    pub fn create_tables(mut self, create: bool) -> Self {
        self.database().create_tables = create;
        self
    }

    /// How many connections at most, besides the one for messages: 4 by
    /// default. Each is used for milliseconds at a time.
    /// From 1 to 1000, or it is refused at the start.
    #[must_use]
    pub fn max_connections(mut self, most: u32) -> Self {
        self.database().max_connections = most;
        self
    }

    fn with(options: PgConnectOptions, pool: PgPoolOptions) -> Self {
        Self::new(PostgresDatabase {
            options,
            pool,
            create_tables: false,
            max_connections: 4,
        })
    }
}

impl PostgresDatabase {
    /// A pool that connects when it is first used.
    fn connections(&self, most: u32, request_timeout: Duration) -> Pool<sqlx::Postgres> {
        let options = self
            .options
            .clone()
            // A pooler refuses parameters that it does not know.
            .extra_float_digits(None)
            .statement_cache_capacity(0)
            .disable_statement_logging();
        own_pool(self.pool.clone(), most, request_timeout).connect_lazy_with(options)
    }
}

/// Waits for the disk also where the session would not. What is set when the
/// transaction commits counts, and is set for that one only:
/// https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-SYNCHRONOUS-COMMIT
/// Who waits for more, such as replicas, still does. In three columns, so that no
/// row of it is taken for the answer of a script.
macro_rules! wait_for_the_disk {
    () => {
        "SELECT set_config('synchronous_commit', 'on', true), 0, 0 \
         WHERE current_setting('synchronous_commit') = 'off'"
    };
}

const DIALECT: Dialect = Dialect {
    // A release may be undone by a crash of the server: the lease then ends by
    // itself.
    begin: "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = $timeout; \
            SET LOCAL synchronous_commit = off",
    begin_lease: concat!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = $timeout; \
         SET LOCAL lock_timeout = 500; ",
        wait_for_the_disk!()
    ),
    begin_grant: concat!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = $timeout; ",
        wait_for_the_disk!()
    ),
    // A page that was half written is mended from the log, or found by its
    // checksum: https://www.postgresql.org/docs/current/wal-reliability.html
    durable: "CASE WHEN current_setting('fsync', true) = 'on' \
              AND (current_setting('full_page_writes', true) = 'on' \
              OR current_setting('data_checksums', true) = 'on') THEN 1 ELSE 0 END",
    // Unlogged tables are emptied after a crash.
    durable_tables: "CASE WHEN (SELECT COUNT(*) FROM pg_class \
                     WHERE oid IN (CAST('dlock_lock' AS regclass), CAST('dlock_meta' AS regclass)) \
                     AND relpersistence = 'p') = 2 THEN 1 ELSE 0 END",
    durable_with: "`fsync` and `full_page_writes` to on in its server, and dlock's tables to \
                   LOGGED",
    commit: "COMMIT",
    // `now()` is when the transaction began.
    now: "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    lock: "INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited) \
           VALUES ($key, 0, 'w', '', 0, 0) ON CONFLICT (name) DO UPDATE SET waited = l.waited",
    take: include_str!("take.sql"),
    free: "UPDATE dlock_lock SET owner = '', expires_at = {now} \
           WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now} \
           RETURNING waited",
    alive: "INSERT INTO dlock_process (process, alive_until) VALUES ($process, {now} + $alive) \
            ON CONFLICT (process) DO UPDATE SET alive_until = excluded.alive_until",
    // Two columns, so that no row of it is taken for the answer of a script.
    wake: "SELECT pg_notify('dlock_' || q.process, q.name), 0 FROM dlock_queue q \
           WHERE q.name = $key AND {first}",
    // What is escaped in `E''` does not depend on the server's settings.
    text: |out, text| {
        out.push_str("E'");
        out.push_str(&text.replace('\\', r"\\").replace('\'', "''"));
        out.push('\'');
    },
};

/// Where messages do not come through.
const PACE: Pace = Pace {
    shortest: Duration::from_millis(5),
    longest: Duration::from_millis(500),
};

impl Database for PostgresDatabase {
    const NAME: &'static str = "postgres";
    const DIALECT: &'static Dialect = &DIALECT;
    const PACE: Pace = PACE;
    const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(400));
    const TLS_ADVICE: &'static str = "see `sslmode` and `sslrootcert` in the URL";

    type Sql = sqlx::Postgres;

    fn check(&self) -> Result<(), BackendError> {
        limits::MAX_CONNECTIONS.check_in_backend(self.max_connections)
    }

    fn name(&self) -> String {
        let options = &self.options;
        let database = options.get_database().unwrap_or(options.get_username());
        match options.get_socket() {
            Some(socket) => format!("postgres at {}, database `{database}`", socket.display()),
            None => format!(
                "postgres at {}:{}, database `{database}`",
                options.get_host(),
                options.get_port()
            ),
        }
    }

    fn servers(&self) -> Option<Servers> {
        let (host, options) = (self.options.get_host(), &self.options);
        // A socket in the file system refuses nothing.
        let is_path = options.get_socket().is_some() || host.starts_with('/');
        let host = Address::of(host, options.get_port()).to_string();
        (!is_path).then(|| Servers::new(Protocol::Postgres, [host]))
    }

    fn pool(&self, request_timeout: Duration) -> Pool<sqlx::Postgres> {
        self.connections(self.max_connections, request_timeout)
    }

    fn schema(&self) -> Option<String> {
        // `IF NOT EXISTS` fails for one of two who do it at the same time.
        self.create_tables.then(|| {
            format!(
                "BEGIN; SELECT pg_advisory_xact_lock(7236837239827); {}COMMIT;",
                include_str!("schema.sql")
            )
        })
    }

    fn listen(
        &self,
        talking: &Pool<sqlx::Postgres>,
        notifications: Notifications,
    ) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let listening = self.connections(1, notifications.endpoint.request_timeout);
        Some(Box::pin(listen::listen(
            listening,
            talking.clone(),
            notifications,
        )))
    }

    fn meaning(error: &sqlx::Error) -> Option<Meaning> {
        errors::meaning(error)
    }

    fetch_and_cell!();
}
