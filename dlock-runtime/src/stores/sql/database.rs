//! What is particular to a kind of database, and the settings of a backend.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::pool::PoolOptions;
use sqlx::{ConnectOptions as _, Pool};

use super::retry::Meaning;
use crate::backend::{Protocol, Servers};
use crate::stores::address::Address;

/// A kind of database, and how to reach one.
pub trait Database: Clone + Send + Sync + 'static {
    /// What it is called in messages.
    const NAME: &'static str;

    /// Its driver.
    #[doc(hidden)]
    type Sql: sqlx::Database;

    /// What it says in its own way, for the [scripts](super::script).
    #[doc(hidden)]
    const WORDS: &'static str;

    /// What to set so that tokens outlive a crash of its machine, for messages;
    /// empty if they always do.
    #[doc(hidden)]
    const DURABLE_WITH: &'static str = "";

    /// How soon a waiter's turn is looked for where no messages come.
    #[doc(hidden)]
    const PACE: Pace;

    /// How long to wait before an attempt is repeated, the first time and at most.
    #[doc(hidden)]
    const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(400));

    /// What servers like it speak. `None`, it is a file: no connection to it is
    /// forgotten on the way, it runs nothing later, and a process that ends leaves
    /// files behind which closing one removes.
    #[doc(hidden)]
    const PROTOCOL: Option<Protocol>;

    #[doc(hidden)]
    const IS_FILE: bool = Self::PROTOCOL.is_none();

    /// Which parameters of its URL say how connections are encrypted.
    #[doc(hidden)]
    const TLS_ADVICE: &'static str = "";

    /// What to do when no connection was to be had in time.
    #[doc(hidden)]
    const UNREACHED_ADVICE: &'static str =
        "check that it runs and that the URL names its host and port";

    /// What to do when a script was not answered in time.
    #[doc(hidden)]
    const SILENCE_ADVICE: &'static str = "check the network, or raise the request timeout";

    #[doc(hidden)]
    fn location(options: &Options<Self>) -> Location<'_>;

    /// Sets what dlock needs on its connections.
    #[doc(hidden)]
    fn prepare(options: Options<Self>) -> Options<Self>;

    /// Writes text as a literal.
    #[doc(hidden)]
    fn literal(out: &mut String, text: &str);

    /// What an error means, if it is the database's own.
    #[doc(hidden)]
    fn meaning(error: &sqlx::Error) -> Option<Meaning>;

    /// Runs a script as one message.
    #[doc(hidden)]
    fn run<'a>(
        connection: &'a mut Connection<Self>,
        script: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Row<Self>>, sqlx::Error>>;

    /// Reads the columns of a row as text. Their types are not checked: what is a
    /// number to one statement is a short one to another.
    #[doc(hidden)]
    fn read(row: &Row<Self>) -> Result<Vec<String>, sqlx::Error>;
}

pub(super) type Connection<D> = <<D as Database>::Sql as sqlx::Database>::Connection;
type PoolSettings<D> = PoolOptions<<D as Database>::Sql>;
pub(super) type Options<D> = <Connection<D> as sqlx::Connection>::Options;
pub(super) type Row<D> = <<D as Database>::Sql as sqlx::Database>::Row;

/// What is written alike for each database: `sqlx` knows only the concrete types.
macro_rules! by_driver {
    () => {
        fn run<'a>(
            connection: &'a mut $crate::stores::sql::database::Connection<Self>,
            script: &'a str,
        ) -> futures_util::future::BoxFuture<
            'a,
            Result<Vec<$crate::stores::sql::database::Row<Self>>, sqlx::Error>,
        > {
            sqlx::Executor::fetch_all(connection, sqlx::raw_sql(script))
        }

        fn read(
            row: &$crate::stores::sql::database::Row<Self>,
        ) -> Result<Vec<String>, sqlx::Error> {
            let columns = 0..sqlx::Row::len(row);
            let read = |column| sqlx::Row::try_get_unchecked(row, column);
            columns.map(read).collect()
        }
    };
}
pub(super) use by_driver;

/// How soon a waiter's turn is looked for where no messages come. The pause
/// grows with how long nothing has happened: those who wait for a lock that goes
/// from hand to hand look often, those who wait for a long job seldom.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

/// Where a database is.
#[derive(Clone, Copy, Debug)]
pub enum Location<'a> {
    /// In a file.
    File(&'a Path),
    /// On a server.
    Server {
        /// The server's name or address.
        host: &'a str,
        /// Where it listens.
        port: u16,
        /// Where it listens instead.
        socket: Option<&'a Path>,
        /// The name of the database.
        database: &'a str,
    },
}

/// What the settings of a backend say.
#[derive(Clone)]
pub(crate) struct SqlConfig<D: Database> {
    pub(super) options: Options<D>,
    /// The settings and hooks of its connections.
    pub(super) pool: PoolSettings<D>,
    pub(super) create_tables: bool,
    pub(super) max_connections: u32,
}

/// An idle connection to a server is closed after this time: before a firewall
/// forgets it, as a rule.
const IDLE: Duration = Duration::from_secs(30);

impl<D: Database> SqlConfig<D> {
    /// As it is named in messages, where no password is.
    pub(super) fn name(&self) -> String {
        let kind = D::NAME;
        match D::location(&self.options) {
            Location::File(path) => format!("{kind} file `{}`", path.display()),
            Location::Server {
                socket: Some(socket),
                database,
                ..
            } => format!("{kind} at {}, database `{database}`", socket.display()),
            Location::Server {
                host,
                port,
                database,
                ..
            } => format!("{kind} at {host}:{port}, database `{database}`"),
        }
    }

    pub(super) fn servers(&self) -> Option<Servers> {
        match D::location(&self.options) {
            // A file or a socket refuses nothing.
            Location::Server {
                host,
                port,
                socket: None,
                ..
            } if !host.starts_with('/') => Some(Servers::new(
                D::PROTOCOL?,
                [Address::of(host, port).to_string()],
            )),
            _ => None,
        }
    }

    /// Connections of dlock's own, made when first needed.
    pub(super) fn connections(&self, most: u32, request_timeout: Duration) -> Pool<D::Sql> {
        let idle = self.pool.get_idle_timeout().unwrap_or(IDLE).min(IDLE);
        let pool = self.pool.clone();
        pool.max_connections(most)
            .min_connections(0)
            .acquire_timeout(request_timeout)
            .idle_timeout((!D::IS_FILE).then_some(idle))
            // See `Pooled::shows_life`.
            .test_before_acquire(false)
            .connect_lazy_with(D::prepare(self.options.clone()).disable_statement_logging())
    }
}

impl<D: Database> fmt::Debug for SqlConfig<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
