//! The `sqlite:` store: a file that the processes of one machine share.
//!
//! - The journal mode is WAL, in which readers do not wait for writers
//!   (<https://www.sqlite.org/wal.html>).
//! - A transaction of several statements begins with `BEGIN IMMEDIATE`: one that reads first and
//!   then writes may be refused at the write (<https://www.sqlite.org/lang_transaction.html>).
//! - Each backend has one connection. SQLite has one writer at a time, so the tasks of a process
//!   queue for the connection instead of finding the file busy. If another process keeps the file
//!   busy, the engine tries again.

mod errors;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use futures_util::FutureExt as _;
use sqlx::Pool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};

use super::Sql;
use super::database::{Connection, Database, Location, Meaning, Pace, Row, by_driver, rows_of};
use super::tables::Notifies;
use super::work::{Args, SingleStatement, Statement, whole_ms};
use crate::backend::{BackendError, BackendErrorKind, Protocol};
use crate::key::Shown;

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
/// The file and its tables are created if they do not exist. The file may hold other tables too,
/// but a long transaction on these keeps every lock waiting.
pub type Sqlite = Sql<SqliteFile>;

/// What is particular to SQLite.
#[derive(Clone, Copy, Debug)]
pub struct SqliteFile;

/// The beginning of the name that the driver gives to a database in memory.
const IN_MEMORY: &str = "file:sqlx-in-memory-";

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
            return Err(invalid(
                "it takes a path only, without `?` (and `Config` `token_floor=N` behind that)",
            ));
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

    /// The file of a pool, with the pool's settings. dlock opens a connection of its own: it uses
    /// none of the pool's, and goes on when the pool is closed.
    pub fn from_pool(pool: &Pool<sqlx::Sqlite>) -> Result<Self, BackendError> {
        Self::with_options((*pool.connect_options()).clone())
    }

    fn with_options(options: SqliteConnectOptions) -> Result<Self, BackendError> {
        let name = options.get_filename().to_string_lossy().into_owned();
        if name.contains('\0') {
            return Err(invalid("the path of its file holds a NUL"));
        }
        // SQLite reads such a name as a URI, whose parameters can turn locking off
        // (<https://www.sqlite.org/uri.html>).
        if name.starts_with("file:") && !name.starts_with(IN_MEMORY) {
            return Err(invalid("it takes a path; leave out `file:`"));
        }
        if name.is_empty() || name.contains(":memory:") || name.starts_with(IN_MEMORY) {
            return Err(invalid(
                "a SQLite database in memory holds locks of this process only; name a file, or \
                 write `memory:`",
            ));
        }
        let pool = SqlitePoolOptions::new().max_lifetime(None);
        Ok(Self::with(options, pool))
    }
}

fn invalid(reason: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Config, reason)
}

impl Database for SqliteFile {
    const NAME: &'static str = "sqlite";
    const PROTOCOL: Option<Protocol> = None;
    const WORDS: &'static str = include_str!("words.sql");
    /// Looks are cheap: one costs a read of shared memory.
    const PACE: Pace = Pace {
        shortest: Duration::from_millis(1),
        longest: Duration::from_millis(100),
    };
    // A writer usually keeps the file for less than a millisecond.
    const PAUSES: (Duration, Duration) = (Duration::from_micros(300), Duration::from_millis(10));
    const QUICK: &'static [SingleStatement] = &[SingleStatement::Take, SingleStatement::Release];
    // The one connection was not free in time, because other tasks of this process wait for the
    // file.
    const UNREACHED_ADVICE: &'static str = "look for another process that is stopped in the middle of a write, or that uses the file \
         for more than locks";
    // SQLite has not returned at all.
    const SILENCE_ADVICE: &'static str =
        "check the disk that it is on, or raise the request timeout";

    type Sql = sqlx::Sqlite;

    fn location(options: &SqliteConnectOptions) -> Location {
        Location {
            name: format!(
                "file `{}`",
                Shown(&options.get_filename().to_string_lossy())
            ),
            address: None,
        }
    }

    fn file(options: &SqliteConnectOptions) -> Option<PathBuf> {
        Some(options.get_filename().to_owned())
    }

    fn prepare(options: SqliteConnectOptions) -> SqliteConnectOptions {
        options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // Without this, a sync on macOS ends in the memory of the disk
            // (<https://www.sqlite.org/pragma.html#pragma_fullfsync>).
            .pragma("fullfsync", "ON")
            // The engine repeats what finds the file busy. SQLite itself would sleep up to a tenth
            // of a second between two attempts (`sqliteDefaultBusyCallback`).
            .busy_timeout(Duration::ZERO)
            .row_buffer_size(1024)
    }

    fn literal(out: &mut String, text: &str) {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    }

    fn meaning(error: &sqlx::Error) -> Option<Meaning> {
        errors::meaning(error)
    }

    async fn quick(
        connection: &mut Connection<Self>,
        what: SingleStatement,
        statement: &Statement,
        args: &Args<'_>,
        _: &mut bool,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let pragma = match what {
            SingleStatement::Take | SingleStatement::Turn => "PRAGMA synchronous = EXTRA",
            SingleStatement::Release => "PRAGMA synchronous = NORMAL",
        };
        // This pragma takes effect when it is compiled, so it cannot be prepared
        // (<https://www.sqlite.org/pragma.html>). One poll hands it to the thread of the
        // connection, which does one thing after the other, and `quick_take` checks that it has
        // taken effect.
        let _ = sqlx::raw_sql(pragma)
            .execute(&mut *connection)
            .now_or_never();
        let mut query = sqlx::query(&statement.text)
            .bind(args.key)
            .bind(&args.owner);
        if what != SingleStatement::Release {
            query = query.bind(whole_ms(args.ttl));
        }
        let rows = query.fetch_all(connection).await?;
        let columns = what.columns();
        rows_of!(rows, columns)
    }

    by_driver!();
}

impl Notifies for SqliteFile {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::backend::{Mode, Owner, Request};
    use crate::deadline::Deadline;
    use crate::engine::bare;
    use crate::store::{Attempt, Attempted, Ending, Freed, Store, Take, Want};

    /// Longer than anything here takes.
    const HANG: Duration = Duration::from_secs(60);

    /// Repeats what finds the file busy, as the engine does.
    async fn done<T>(mut attempt: impl AsyncFnMut() -> Attempted<T>) -> T {
        let repeated = async {
            loop {
                if let Ok(done) = attempt().await {
                    return done;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let done = timeout(HANG, repeated).await;
        done.expect("others write for a moment only")
    }

    #[tokio::test]
    async fn who_is_next_is_told_that_another_connection_has_written() {
        let name = format!("dlock-sqlite-{}.db", Owner::unique());
        let path = std::env::temp_dir().join(name);
        let url = format!("sqlite:{}", path.display());
        let open = async || bare::open(Sqlite::from_url(&url).expect("a path")).await;
        let (holder, waiter) = (done(open).await, done(open).await);
        let [held, waits] = [(); 2].map(|()| Request::new("key", Mode::Write, HANG));
        let deadline = Deadline::after(HANG);
        let taken = done(async || {
            let notes = &mut Default::default();
            let attempt = Attempt { deadline, notes };
            holder.store.take(&held, Want::Try, attempt).await
        });
        assert!(matches!(taken.await, Take::Granted(_)), "it is free");
        let queued = done(async || {
            let queue = Want::Queue {
                beat: true,
                has_place: false,
            };
            let notes = &mut Default::default();
            let attempt = Attempt { deadline, notes };
            waiter.store.take(&waits, queue, attempt).await
        });
        assert!(matches!(queued.await, Take::Queued), "it is held");
        let mut waited = [waiter.waited("key", [(waits.owner, Mode::Write)].into_iter())];
        done(async || waiter.store.recheck(&mut waited, false, deadline).await).await;
        assert!(!waited[0].waiters[0].wake, "it is held");
        // What was written until now.
        let quiet = Duration::from_millis(200);
        while timeout(quiet, waiter.store.changed()).await.is_ok() {}

        let released = done(async || {
            let notes = &mut Default::default();
            let attempt = Attempt { deadline, notes };
            holder
                .store
                .release(&held, None, Ending::Released, attempt)
                .await
        });
        assert!(matches!(released.await, Freed::Released), "it was held");
        let changed = timeout(HANG, waiter.store.changed()).await;
        changed.expect("the release was written");
        drop((holder, waiter));
        for file in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{file}", path.display()));
        }
    }
}
