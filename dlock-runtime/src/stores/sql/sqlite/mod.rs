//! The `sqlite:` store: a file that the processes of one machine share.
//!
//! - WAL, so that those who look do not wait for those who write.
//! - Every transaction is `BEGIN IMMEDIATE`: one that begins to read and goes on
//!   to write can be refused in the middle.
//! - One connection for each backend: SQLite has one writer at a time, and the
//!   tasks of one process queue here instead of finding the file busy. A file
//!   that another process keeps busy is tried again.

mod errors;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteRow,
};
use sqlx::{ConnectOptions, Pool};

use super::Sql;
use super::database::{Database, fetch_and_cell};
use super::errors::{Endpoint, Meaning};
use super::notifications::Pace;
use super::script::Dialect;
use crate::backend::{BackendError, BackendErrorKind};

/// Locks in a SQLite file, for the processes of one machine.
///
/// ```
/// # use dlock_runtime as dlock;
/// use dlock::backend::sqlite::Sqlite;
///
/// let store = Sqlite::from_url("sqlite:/var/lib/shop/locks.db")?;
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
///
/// The file and its tables are made if they are not there. It may hold other
/// tables too, but a long transaction on these keeps every lock waiting.
pub type Sqlite = Sql<SqliteFile>;

/// A SQLite file.
#[derive(Clone)]
pub struct SqliteFile {
    options: SqliteConnectOptions,
}

impl fmt::Debug for SqliteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.options.get_filename().display())
    }
}

impl Sqlite {
    /// The file at `sqlite:path`; `sqlite:/an/absolute/path` is the same as
    /// `sqlite:///an/absolute/path`. Nothing is opened before the first use.
    ///
    /// # Errors
    ///
    /// The URL names no file.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        let path = url.strip_prefix("sqlite:").unwrap_or(url);
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.contains('?') {
            return Err(invalid("it takes a path only, without `?`"));
        }
        if path.is_empty() {
            return Err(invalid(
                "it names no file; write sqlite:path, for example sqlite:/var/lib/shop/locks.db",
            ));
        }
        let options = SqliteConnectOptions::from_str(url)
            .map_err(|error| invalid(&format!("{error}; write sqlite:path")))?;
        Self::with_options(options)
    }

    /// The file of a pool, with the pool's settings. The connection is one of
    /// its own: the pool's are not taken up, nor is its end noticed.
    ///
    /// # Errors
    ///
    /// The pool's database is in memory, where no other process could share it.
    pub fn from_pool(pool: &Pool<sqlx::Sqlite>) -> Result<Self, BackendError> {
        Self::with_options((*pool.connect_options()).clone())
    }

    fn with_options(options: SqliteConnectOptions) -> Result<Self, BackendError> {
        let name = options.get_filename().to_string_lossy().into_owned();
        if name.is_empty() || name.contains(":memory:") || name.starts_with("file:sqlx-in-memory-")
        {
            return Err(invalid(
                "a SQLite database in memory holds locks of this process only; name a file, or \
                 write `memory:`",
            ));
        }
        Ok(Self::new(SqliteFile { options }))
    }
}

fn invalid(reason: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Config, reason)
}

const DIALECT: Dialect = Dialect {
    // Without a wait for the disk: should the machine fail, its processes and
    // their leases are gone with it. Only the tokens have to stay.
    begin: "PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE",
    begin_lease: "PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE",
    // As good as `FULL`, and better where the file system has no WAL.
    begin_grant: "PRAGMA synchronous = EXTRA; BEGIN IMMEDIATE",
    durable: "1",
    durable_tables: "1",
    durable_with: "",
    commit: "COMMIT",
    now: "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    lock: "INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited) \
           VALUES ($key, 0, 'w', '', 0, 0) ON CONFLICT (name) DO NOTHING",
    take: include_str!("take.sql"),
    free: "UPDATE dlock_lock SET owner = '', expires_at = {now} \
           WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now} \
           RETURNING waited",
    alive: "INSERT INTO dlock_process (process, alive_until) VALUES ($process, {now} + $alive) \
            ON CONFLICT (process) DO UPDATE SET alive_until = excluded.alive_until",
    wake: "",
    text: |out, text| {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    },
};

/// A look costs a read of shared memory.
const PACE: Pace = Pace {
    shortest: Duration::from_millis(1),
    longest: Duration::from_millis(100),
};

impl Database for SqliteFile {
    const NAME: &'static str = "sqlite";
    const DIALECT: &'static Dialect = &DIALECT;
    const PACE: Pace = PACE;
    // Who writes has the file for a part of a millisecond, as a rule.
    const PAUSES: (Duration, Duration) = (Duration::from_micros(300), Duration::from_millis(10));
    // The `-wal` and the `-shm`: the last connection to the file removes them.
    const IS_FILE: bool = true;

    type Sql = sqlx::Sqlite;

    fn name(&self) -> String {
        format!("sqlite file `{}`", self.options.get_filename().display())
    }

    fn pool(&self, request_timeout: Duration) -> Pool<sqlx::Sqlite> {
        let options = self
            .options
            .clone()
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // Through the disk's own memory too, where macOS leaves that out.
            .pragma("fullfsync", "ON")
            // What waits is repeated here: SQLite would sleep up to a tenth of
            // a second between two attempts.
            .busy_timeout(Duration::ZERO)
            .row_buffer_size(1024)
            .disable_statement_logging();
        SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(request_timeout)
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(options)
    }

    fn schema(&self) -> Option<String> {
        let tables = include_str!("schema.sql");
        Some(format!("BEGIN IMMEDIATE;\n{tables}COMMIT;\n"))
    }

    fn meaning(error: &sqlx::Error) -> Option<Meaning> {
        errors::meaning(error)
    }

    fn unreachable(endpoint: &Endpoint) -> BackendError {
        errors::kept_busy(endpoint)
    }

    fn silent(endpoint: &Endpoint) -> BackendError {
        errors::stuck(endpoint)
    }

    /// A script that is given up in the middle would leave its transaction open.
    async fn run(
        connection: &mut SqliteConnection,
        script: &str,
        _deadline: Instant,
    ) -> Option<Result<Vec<SqliteRow>, sqlx::Error>> {
        Some(Self::fetch(connection, script).await)
    }

    fetch_and_cell!();
}
