//! What differs from one kind of database to the next, and the settings of a backend.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{ConnectOptions as _, Pool};

use super::work::{Args, SingleStatement, Statement};
use crate::backend::{Protocol, Servers};
use crate::stores::meaning;

/// A kind of database, and how to reach one.
pub trait Database: Clone + Send + Sync + 'static {
    /// Its name in messages.
    const NAME: &'static str;

    /// Its driver.
    type Sql: sqlx::Database;

    /// The SQL that is particular to it, for the [scripts](super::script).
    const WORDS: &'static str;

    /// For messages: what to set so that tokens outlive a crash of its machine. Empty if they
    /// always do.
    const DURABLE_WITH: &'static str = "";

    /// How often waited-for locks are looked at where no notifications come.
    const PACE: Pace;

    /// The pauses between the attempts of an operation: the first and the longest.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(400));

    /// The protocol of its servers. `None` for a file: no network can cut off its connections,
    /// nothing runs later than its caller waits, and its last connection must be closed, which
    /// removes the file `-wal` beside it (<https://www.sqlite.org/wal.html>).
    const PROTOCOL: Option<Protocol>;

    const IS_FILE: bool = Self::PROTOCOL.is_none();

    /// Whether each statement of a script for several locks commits by itself. An error of such a
    /// script does not mean that nothing was done. A lock that is missing in the answer to
    /// `take_together` was not taken, and is asked for alone: it may have no row yet, which takes
    /// more than one statement.
    const EACH_COMMITS: bool = false;

    /// The statements that it has for a lone lock.
    const QUICK: &'static [SingleStatement] = &[];

    /// For messages: the parameters of its URL that are about encryption.
    const TLS_ADVICE: &'static str = "";

    /// For messages: what to do if there was no connection in time.
    const UNREACHED_ADVICE: &'static str =
        "check that it runs and that the URL names its host and port";

    /// For messages: what to do if a script was not answered in time.
    const SILENCE_ADVICE: &'static str = "check the network, or raise the request timeout";

    fn location(options: &Options<Self>) -> Location;

    /// Its file, if it is one.
    fn file(options: &Options<Self>) -> Option<PathBuf> {
        let _ = options;
        None
    }

    /// Sets what dlock needs on its connections.
    fn prepare(options: Options<Self>) -> Options<Self>;

    /// Gives this name to the connections, if the driver can do that and the service has not named
    /// them.
    fn named(options: Options<Self>, label: &str) -> Options<Self> {
        let _ = label;
        options
    }

    /// What each statement begins with, if connections cannot have a name.
    fn mark(label: &str) -> String {
        let _ = label;
        String::new()
    }

    /// Appends the text as a literal.
    fn literal(out: &mut String, text: &str);

    /// What an error means; `None` if that is the same for every database.
    fn meaning(error: &sqlx::Error) -> Option<Meaning>;

    /// Runs a statement for a lone lock. Answers as the script does; no row means that nothing was
    /// done. Keeps in `is_prepared` whether the connection has prepared the statement.
    fn quick(
        connection: &mut Connection<Self>,
        what: SingleStatement,
        statement: &Statement,
        args: &Args<'_>,
        is_prepared: &mut bool,
    ) -> impl Future<Output = Result<Vec<Row>, sqlx::Error>> + Send {
        let _ = (connection, what, statement, args, is_prepared);
        async { Ok(Vec::new()) }
    }

    /// Runs a script as one message. Its answer is the rows with this many columns: other
    /// statements of the script return rows too. All values are read as text and their types are
    /// not checked, since two statements may return the same column as integers of different sizes.
    fn run(
        connection: &mut Connection<Self>,
        script: &str,
        columns: usize,
    ) -> impl Future<Output = Result<Vec<Row>, sqlx::Error>> + Send;
}

pub(super) type Connection<D> = <<D as Database>::Sql as sqlx::Database>::Connection;
type PoolSettings<D> = PoolOptions<<D as Database>::Sql>;
pub(super) type Options<D> = <Connection<D> as sqlx::Connection>::Options;

/// The implementation of `run`. It is a macro because `sqlx` executes only on concrete types.
macro_rules! by_driver {
    () => {
        async fn run(
            connection: &mut $crate::stores::sql::database::Connection<Self>,
            script: &str,
            columns: usize,
        ) -> Result<Vec<$crate::stores::sql::database::Row>, sqlx::Error> {
            let rows = sqlx::Executor::fetch_all(connection, sqlx::raw_sql(script)).await?;
            $crate::stores::sql::database::rows_of!(rows, columns)
        }
    };
}
pub(super) use by_driver;

/// The rows that have this many columns.
macro_rules! rows_of {
    ($rows:ident, $columns:ident) => {{
        use sqlx::Row as _;
        let answer = $rows.iter().filter(|row| row.len() == $columns);
        let read = answer.map(|row| {
            let text = (0..$columns).map(|column| row.try_get_unchecked(column));
            text.collect::<Result<_, _>>()
        });
        read.map(|text| Ok($crate::stores::sql::database::Row(text?)))
            .collect()
    }};
}
pub(super) use rows_of;

/// A row of an answer.
#[derive(Clone, Debug)]
pub struct Row(pub(super) Vec<String>);

impl Row {
    /// The value as a number; 0 if it is not one.
    pub(super) fn int(&self, column: usize) -> i64 {
        self.text(column).parse().unwrap_or(0)
    }

    pub(super) fn text(&self, column: usize) -> &str {
        self.0.get(column).map_or("", String::as_str)
    }
}

/// What an error of a database means.
pub(super) type Meaning = meaning::Meaning<RetryPolicy>;

/// What can be done after an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Nothing: it would fail again.
    #[default]
    Stop,
    /// The script was undone and may be repeated: the database was busy, or another session has
    /// changed the row meanwhile.
    Again,
    /// The script was undone because another session kept a row that it needs, or both waited for
    /// each other (a deadlock).
    Kept,
    /// The server takes no writes, and another connection may lead to one that does. Nothing was
    /// done.
    ReadOnly,
    /// The server runs no statements for now, and another connection may lead to one that does. It
    /// has not run this statement. What was committed before it was done.
    OutOfService,
    /// Another connection is needed. Whether the script was run is not known.
    Reconnect,
}

impl RetryPolicy {
    pub(super) fn needs_another_connection(self) -> bool {
        match self {
            Self::ReadOnly | Self::OutOfService | Self::Reconnect => true,
            Self::Stop | Self::Again | Self::Kept => false,
        }
    }
}

/// How often a waited-for lock is looked at where no notifications come. The pause grows with the
/// time in which nothing has happened: a lock that changes hands often is looked at often, one that
/// is held for a long job seldom.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

/// Where a database is.
#[derive(Clone, Debug)]
pub struct Location {
    /// As messages name it: without a password.
    pub(super) name: String,
    /// Host and port; `None` for a file or a Unix socket, which are on this machine.
    pub(super) address: Option<String>,
}

/// The settings of a backend.
#[derive(Clone)]
pub(crate) struct SqlConfig<D: Database> {
    pub(super) options: Options<D>,
    /// The service's own settings for opening connections.
    pub(super) pool: PoolSettings<D>,
    pub(super) create_tables: bool,
    pub(super) max_connections: u32,
}

impl<D: Database> SqlConfig<D> {
    /// As messages name it.
    pub(super) fn name(&self) -> String {
        format!("{} {}", D::NAME, D::location(&self.options).name)
    }

    pub(super) fn servers(&self) -> Option<Servers> {
        let address = D::location(&self.options).address?;
        Some(Servers::new(D::PROTOCOL?, [address]))
    }

    /// A pool that only opens dlock's connections, with the settings of the service.
    pub(super) fn opener(&self, request_timeout: Duration) -> Pool<D::Sql> {
        let pool = self.pool.clone();
        pool.max_connections(self.max_connections)
            .min_connections(0)
            .acquire_timeout(request_timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(D::prepare(self.options.clone()).disable_statement_logging())
    }
}

impl<D: Database> fmt::Debug for SqlConfig<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
