//! The `mysql://` store: MySQL and MariaDB.
//!
//! - `READ COMMITTED`, whatever the server's default is: each statement has to
//!   see what was committed before it began, and no gaps between rows are
//!   locked, where two who make a row wait for each other.
//! - Names are bytes: a collation would take two keys for one.
//! - Nobody is told of a release; waiters look.

mod errors;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{ConnectOptions, Pool};

use super::Sql;
use super::database::{Database, fetch_and_cell};
use super::errors::Meaning;
use super::notifications::Pace;
use super::pooled::own_pool;
use super::script::Dialect;
use super::url::take_parameter;
use crate::backend::{BackendError, BackendErrorKind, Protocol, Servers};
use crate::limits;
use crate::stores::address::Address;

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
/// Its tables have to be there, or are made with
/// `create_tables`.
pub type MySql = Sql<MySqlDatabase>;

/// A database of MySQL or MariaDB.
#[derive(Clone)]
pub struct MySqlDatabase {
    options: MySqlConnectOptions,
    /// The settings and hooks of a pool.
    pool: MySqlPoolOptions,
    /// As it is named in messages.
    name: String,
    create_tables: bool,
    max_connections: u32,
}

impl fmt::Debug for MySqlDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl MySql {
    /// The database at `mysql://[user[:password]@]host[:port]/database`, with
    /// the parameters that `sqlx` knows (`?ssl-mode=…`), and
    /// `?create_tables=true`. Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood. The message never holds a part of it.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let (url, create) = take_parameter(url, "create_tables")?;
        let options = MySqlConnectOptions::from_str(&url).map_err(|_| {
            BackendError::new(
                BackendErrorKind::Config,
                "not a URL of MySQL; write mysql://user:password@host:3306/database, and what is \
                 special in the password percent-encoded",
            )
        })?;
        Ok(Self::with(options, MySqlPoolOptions::new()).create_tables(create))
    }

    /// The database of a pool, with the pool's settings and hooks. The
    /// connections are others: those of the pool may be taken up by bodies that
    /// wait for a lock, while its holder needs one to give it back.
    #[must_use]
    pub fn from_pool(pool: &Pool<sqlx::MySql>) -> Self {
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

    /// How many connections at most: 4 by default. Each is used for
    /// milliseconds at a time.
    /// From 1 to 1000, or it is refused at the start.
    #[must_use]
    pub fn max_connections(mut self, most: u32) -> Self {
        self.database().max_connections = most;
        self
    }

    fn with(options: MySqlConnectOptions, pool: MySqlPoolOptions) -> Self {
        let name = format!(
            "mysql at {}:{}, database `{}`",
            options.get_host(),
            options.get_port(),
            options.get_database().unwrap_or_default()
        );
        Self::new(MySqlDatabase {
            options,
            pool,
            name,
            create_tables: false,
            max_connections: 4,
        })
    }
}

/// With a limit to the wait for a row and for a table: the server does not
/// notice that a client has gone, and would run a script that waits for a row
/// when that comes free, for nobody. It is set in each script, as a proxy may
/// give each to another session.
const BEGIN: &str = "SET innodb_lock_wait_timeout = $seconds, lock_wait_timeout = $seconds; \
                     SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";

const DIALECT: Dialect = Dialect {
    begin: BEGIN,
    // The shortest wait that there is.
    begin_lease: "SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1; \
                  SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION",
    begin_grant: BEGIN,
    // 3 is MariaDB's, and does more than 1. With a binary log, a commit is as
    // durable as its entry there, and one that lacks it is undone after a crash:
    // https://bugs.mysql.com/bug.php?id=75519
    durable: "CASE WHEN @@GLOBAL.innodb_flush_log_at_trx_commit IN (1, 3) \
              AND (@@GLOBAL.log_bin = 0 OR @@GLOBAL.sync_binlog = 1) THEN 1 ELSE 0 END",
    durable_tables: "CASE WHEN (SELECT COUNT(*) FROM information_schema.tables \
                     WHERE table_schema = DATABASE() AND engine = 'InnoDB' \
                     AND table_name IN ('dlock_lock', 'dlock_meta')) = 2 THEN 1 ELSE 0 END",
    durable_with: "`innodb_flush_log_at_trx_commit` to 1 in its server, `sync_binlog` to 1 if it \
                   has a binary log, and dlock's tables to InnoDB",
    commit: "COMMIT",
    // `UNIX_TIMESTAMP()` goes by way of the session's time zone, and jumps when
    // that has summer time.
    now: "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)",
    // Not `INSERT IGNORE`: that locks a row that is there for reading, and two
    // who do so and then write wait for each other.
    lock: "INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited) \
           VALUES ($key, 0, 'w', '', 0, 0) ON DUPLICATE KEY UPDATE waited = waited",
    take: include_str!("take.sql"),
    free: include_str!("free.sql"),
    alive: "INSERT INTO dlock_process (process, alive_until) VALUES ($process, {now} + $alive) \
            ON DUPLICATE KEY UPDATE alive_until = VALUES(alive_until)",
    wake: "",
    // Whether a backslash escapes depends on the session's settings.
    text: |out, text| {
        out.push_str("x'");
        for byte in text.bytes() {
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
            }
        }
        out.push('\'');
    },
};

const PACE: Pace = Pace {
    shortest: Duration::from_millis(3),
    longest: Duration::from_millis(500),
};

impl Database for MySqlDatabase {
    const NAME: &'static str = "mysql";
    const DIALECT: &'static Dialect = &DIALECT;
    const PACE: Pace = PACE;
    const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(400));
    const TLS_ADVICE: &'static str = "see `ssl-mode` and `ssl-ca` in the URL";

    type Sql = sqlx::MySql;

    fn check(&self) -> Result<(), BackendError> {
        limits::MAX_CONNECTIONS.check_in_backend(self.max_connections)
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn servers(&self) -> Option<Servers> {
        let (host, options) = (self.options.get_host(), &self.options);
        // A socket in the file system refuses nothing.
        let is_path = options.get_socket().is_some() || host.starts_with('/');
        let host = Address::of(host, options.get_port()).to_string();
        (!is_path).then(|| Servers::new(Protocol::MySql, [host]))
    }

    fn pool(&self, request_timeout: Duration) -> Pool<sqlx::MySql> {
        let options = self
            .options
            .clone()
            .statement_cache_capacity(0)
            .disable_statement_logging();
        own_pool(self.pool.clone(), self.max_connections, request_timeout)
            .connect_lazy_with(options)
    }

    fn schema(&self) -> Option<String> {
        self.create_tables
            .then(|| include_str!("schema.sql").to_owned())
    }

    fn meaning(error: &sqlx::Error) -> Option<Meaning> {
        errors::meaning(error)
    }

    fetch_and_cell!();
}
