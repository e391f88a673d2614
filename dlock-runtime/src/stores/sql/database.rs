//! What is particular to a kind of database, and the settings of a backend.

use std::fmt;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{ConnectOptions as _, Pool};

use super::work::{Args, Statement, Together};
use crate::backend::{Protocol, Servers};
use crate::stores::meaning;

/// A kind of database, and how to reach one.
pub trait Database: Clone + Send + Sync + 'static {
    /// What it is called in messages.
    const NAME: &'static str;

    /// Its driver.
    type Sql: sqlx::Database;

    /// What it says in its own way, for the [scripts](super::script).
    const WORDS: &'static str;

    /// What to set so that tokens outlive a crash of its machine, for messages;
    /// empty if they always do.
    const DURABLE_WITH: &'static str = "";

    /// How soon a waiter's turn is looked for where no messages come.
    const PACE: Pace;

    /// How long to wait before an attempt is repeated, the first time and at most.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(400));

    /// What servers like it speak. `None`, it is a file: no connection to it is
    /// forgotten on the way, it runs nothing later, and a process that ends leaves
    /// files behind which closing one removes.
    const PROTOCOL: Option<Protocol>;

    const IS_FILE: bool = Self::PROTOCOL.is_none();

    /// Whether what goes together is no transaction, but statements that are one each: an
    /// error does not say that nothing was done. And a lock that has no row yet is not
    /// taken, as that needs more than a statement; there is an answer for each that has one.
    const EACH_COMMITS: bool = false;

    /// Whether it has statements that take or give back a lone lock.
    const IS_QUICK: bool = false;

    /// Which parameters of its URL say how connections are encrypted.
    const TLS_ADVICE: &'static str = "";

    /// What to do when no connection was to be had in time.
    const UNREACHED_ADVICE: &'static str =
        "check that it runs and that the URL names its host and port";

    /// What to do when a script was not answered in time.
    const SILENCE_ADVICE: &'static str = "check the network, or raise the request timeout";

    fn location(options: &Options<Self>) -> Location;

    /// Sets what dlock needs on its connections.
    fn prepare(options: Options<Self>) -> Options<Self>;

    /// Its connections bear this name, where the driver can name them and nobody else has.
    fn named(options: Options<Self>, label: &str) -> Options<Self> {
        let _ = label;
        options
    }

    /// What each statement begins with, where a connection cannot bear a name.
    fn mark(label: &str) -> String {
        let _ = label;
        String::new()
    }

    /// Writes text as a literal.
    fn literal(out: &mut String, text: &str);

    /// What an error means, if it is the database's own.
    fn meaning(error: &sqlx::Error) -> Option<Meaning>;

    /// Takes or gives back one lock by one of the statements `quick_take` and
    /// `quick_release`, and answers as the script does; no row, if it did nothing. A
    /// connection that `is_new` has prepared none of them.
    fn quick(
        connection: &mut Connection<Self>,
        what: Together,
        all: &[Statement; 2],
        args: &Args<'_>,
        is_new: bool,
    ) -> impl Future<Output = Result<Vec<Row>, sqlx::Error>> + Send {
        let _ = (connection, what, all, args, is_new);
        async { Ok(Vec::new()) }
    }

    /// Runs a script as one message. Of the rows that come back, those of so many
    /// columns are its answer: other statements of the script answer too. They are read
    /// as text, and their types are not checked: what is a number to one statement is a
    /// short one to another.
    fn run(
        connection: &mut Connection<Self>,
        script: &str,
        columns: usize,
    ) -> impl Future<Output = Result<Vec<Row>, sqlx::Error>> + Send;
}

pub(super) type Connection<D> = <<D as Database>::Sql as sqlx::Database>::Connection;
type PoolSettings<D> = PoolOptions<<D as Database>::Sql>;
pub(super) type Options<D> = <Connection<D> as sqlx::Connection>::Options;

/// What is written alike for each database: `sqlx` knows only the concrete types.
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

/// Those rows that have so many columns.
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
    /// The number in a column that is one.
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
    /// The script was undone, and may be repeated: a deadlock, a database that is
    /// busy.
    Again,
    /// The script was undone, as somebody keeps a row that it needs.
    Kept,
    /// The connection has ended. Nobody knows whether the script was run.
    Reconnect,
}

/// How soon a waiter's turn is looked for where no messages come. The pause
/// grows with how long nothing has happened: those who wait for a lock that goes
/// from hand to hand look often, those who wait for a long job seldom.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

/// Where a database is.
#[derive(Clone, Debug)]
pub struct Location {
    /// As it is named in messages, where no password is.
    pub(super) name: String,
    /// Host and port, if it is connected to. A file or a socket refuses nothing.
    pub(super) address: Option<String>,
}

/// What the settings of a backend say.
#[derive(Clone)]
pub(crate) struct SqlConfig<D: Database> {
    pub(super) options: Options<D>,
    /// How its connections are opened.
    pub(super) pool: PoolSettings<D>,
    pub(super) create_tables: bool,
    pub(super) max_connections: u32,
}

impl<D: Database> SqlConfig<D> {
    /// As it is named in messages.
    pub(super) fn name(&self) -> String {
        format!("{} {}", D::NAME, D::location(&self.options).name)
    }

    pub(super) fn servers(&self) -> Option<Servers> {
        let address = D::location(&self.options).address?;
        Some(Servers::new(D::PROTOCOL?, [address]))
    }

    /// What opens connections of dlock's own, with the settings of the service.
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
