//! What the stores on a database server have in common: their server, the store
//! that the suites run on, and what a server can do wrong. A test program of one
//! says what differs, as a [`Database`], and runs `databases!(ItsDatabase)`.

pub(crate) mod durability;
pub(crate) mod floor;
pub(crate) mod limits;
pub(crate) mod page;
pub(crate) mod refusals;
pub(crate) mod sale;
pub(crate) mod server;

use std::sync::Arc;
use std::time::Duration;

use dlock::Config;
use dlock_conformance::{ShownTokens, Store, async_trait};
use sqlx::Pool;

use crate::support::locks::config;
use crate::support::proxy::Proxy;
use crate::tables::{FarTables, Tables};
use server::{Connection, DURABLE, Kind, Server};

/// What else differs between them.
pub(crate) trait Database: Kind {
    /// Milliseconds since 1970, as this database says it.
    const NOW: &'static str;
    /// Keeps the queues from everybody else.
    const KEEP_QUEUE: &'static str;
    /// What it says to a user without rights.
    const DENIED: &'static str;
    /// See [`Tables::BEFORE`].
    const BEFORE: &'static str;
    /// Which block of SQL of each section of the page is about it.
    const BLOCK: usize;

    /// What a server that makes strict tokens is started with.
    const WITH_A_LOG: &'static [&'static str];
    /// Settings of the server, each with a value that loses what was confirmed, and
    /// one that does not. The first is named where tokens are refused.
    const DURABLE_BY: &'static [(&'static str, &'static str, &'static str)];
    /// Each session follows at once.
    const IS_SET_AT_ONCE: bool;
    /// What keeps it from taking writes.
    const READ_ONLY: (&'static str, &'static str);
    /// How a table is kept that a crash may empty, and one that it may not.
    const LOSES_ROWS: &'static str;
    const KEEPS_ROWS: &'static str;
    /// How many statements on the locks of this database are being run.
    const WAITING: &'static str;
    /// What checks its certificate, in its URL.
    const VERIFIES: &'static str;
    /// How many sessions there have been, up to now.
    const SESSIONS: &'static str;

    /// Sets what all sessions go by.
    async fn set(server: &Server<Self>, name: &str, value: &str);

    /// Runs one statement: how many rows it has changed.
    async fn execute(connection: &mut Connection<Self>, sql: &str) -> sqlx::Result<u64>;

    /// The number that a query answers with.
    async fn number(connection: &mut Connection<Self>, sql: &str) -> sqlx::Result<i64>;

    /// All that statements answer with.
    async fn rows(connection: &mut Connection<Self>, sql: &str) -> sqlx::Result<Vec<Vec<String>>>;

    /// The store over a pool.
    fn over(pool: &Pool<Self::Sql>) -> Config;

    /// The store at this URL, over one connection at a time.
    fn narrow(url: &str, request_timeout: Duration) -> Config;

    /// The name of a user, as this database shows it.
    fn quoted(user: &str) -> String;

    /// Makes this user, who may read `dlock_meta` of this database at most.
    fn user_without_rights(user: &str, database: &str) -> String;

    /// Gives this user what dlock needs.
    fn grant(user: &str, database: &str) -> String;
}

/// A database of the test's own, reached through a proxy that can fail.
pub(crate) struct DatabaseStore<D: Database> {
    pub(crate) server: Arc<Server<D>>,
    pub(crate) proxy: Proxy,
    pub(crate) database: String,
}

impl<D: Database> DatabaseStore<D> {
    pub(crate) async fn on(server: Arc<Server<D>>) -> Self {
        Self {
            proxy: Proxy::to(server.port()),
            database: server.database().await,
            server,
        }
    }

    /// A connection of the test's own.
    pub(crate) async fn connection(&self) -> Connection<D> {
        self.server.connection(&self.database).await
    }
}

#[async_trait(?Send)]
impl<D: Database> Store for DatabaseStore<D> {
    async fn start() -> Self {
        Self::on(Server::shared().await).await
    }

    async fn start_durable() -> Self {
        Self::on(Server::shared_durable().await).await
    }

    async fn start_alone() -> Self {
        Self::on(Arc::new(Server::start(DURABLE).await)).await
    }

    fn leaves_out() -> &'static [&'static str] {
        &["cost"]
    }

    fn url(&self) -> String {
        let url = self.server.url(&self.database, self.proxy.port());
        format!("{url}?create_tables=true")
    }

    fn shows_tokens(&self) -> ShownTokens {
        ShownTokens::OfTheLast
    }

    fn proxies(&self) -> &[Proxy] {
        std::slice::from_ref(&self.proxy)
    }

    fn past_proxies(&self) -> Option<Config> {
        Some(self.direct())
    }

    /// Its connections are trusted for some seconds, as `far::faults` shows.
    fn leaves_dead_connections(&self) -> bool {
        false
    }

    async fn take_away(&self, key: &str) {
        let take = format!("UPDATE dlock_lock SET owner = '', expires_at = 0 WHERE name = '{key}'");
        assert_eq!(self.execute(&take).await, 1, "nobody held `{key}`");
    }

    /// As when its machine fails.
    async fn restart(&mut self) -> bool {
        let server = Arc::get_mut(&mut self.server);
        server.expect("a server of the test's own").restart().await;
        true
    }

    async fn records(&self) -> Option<usize> {
        let records = self.number(
            "SELECT (SELECT COUNT(*) FROM dlock_lock) + (SELECT COUNT(*) FROM dlock_reader)
                + (SELECT COUNT(*) FROM dlock_queue) + (SELECT COUNT(*) FROM dlock_process)",
        );
        Some(usize::try_from(records.await).expect("a count"))
    }
}

impl<D: Database> Tables for DatabaseStore<D> {
    const NOW: &'static str = D::NOW;
    const BEFORE: &'static str = D::BEFORE;

    fn upgrade() -> Vec<&'static str> {
        page::statements::<D>("From the version before")
    }

    fn as_they_are(&self) -> Config {
        config(&self.server.url(&self.database, self.proxy.port()))
    }

    async fn execute(&self, sql: &str) -> u64 {
        let done = D::execute(&mut self.connection().await, sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn number(&self, sql: &str) -> i64 {
        let number = D::number(&mut self.connection().await, sql).await;
        number.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let rows = D::rows(&mut self.connection().await, sql).await;
        rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }
}

impl<D: Database> FarTables for DatabaseStore<D> {
    type Keeper = Connection<D>;

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn direct(&self) -> Config {
        let url = self.server.url(&self.database, self.server.port());
        Config::from_url(&format!("{url}?create_tables=true")).expect("a valid URL")
    }

    async fn keep(&self, key: &str) -> Self::Keeper {
        let keep = format!("BEGIN; SELECT name FROM dlock_lock WHERE name = '{key}' FOR UPDATE");
        let mut connection = self.connection().await;
        D::run(&mut connection, &keep).await.expect("the row");
        connection
    }

    async fn keep_new(&self, key: &str) -> Self::Keeper {
        let keep = format!(
            "START TRANSACTION; INSERT INTO dlock_lock (name, token, mode, owner, expires_at, \
             waited) VALUES ('{key}', 64, 'w', '', 0, 0)"
        );
        let mut connection = self.connection().await;
        D::run(&mut connection, &keep).await.expect("a row");
        connection
    }

    async fn keep_queue(&self) -> Self::Keeper {
        let mut connection = self.connection().await;
        let keep = D::run(&mut connection, D::KEEP_QUEUE).await;
        keep.expect("the table");
        connection
    }

    fn narrow(&self, request_timeout: Duration) -> Config {
        D::narrow(&self.url(), request_timeout)
    }
}

macro_rules! databases {
    ($database:ty) => {
        $crate::databases::databases! { @cases $database;
            durability {
                tokens_are_worth_what_the_server_keeps
                tables_that_may_lose_rows_make_no_strict_tokens
                what_a_crash_may_undo_is_found
                a_server_that_takes_no_writes_is_found
            }
            floor {
                a_row_that_is_being_made_is_raised_too
            }
            limits {
                nobody_waits_for_a_row_after_the_request_timeout
                rows_that_somebody_keeps_stop_no_other_lock
                a_row_that_was_given_up_stops_no_other_lock
                what_was_given_up_waits_over_few_connections
                scripts_that_wait_leave_a_connection_to_leases
            }
            refusals {
                missing_tables_are_told_and_made_on_request
                other_tables_are_told
                tables_of_the_version_before_are_upgraded
                the_tables_of_the_page_are_enough
                the_sql_of_the_message_makes_the_tables
                a_user_without_rights_is_told_what_to_grant
                a_wrong_address_or_name_is_told_without_the_password
                a_pool_is_not_used_up
                what_was_refused_is_not_given_back
                certificates_that_are_missing_or_not_trusted_are_wrong_settings
            }
            sale {
                a_flash_sale_sells_exactly_the_stock
            }
        }
    };
    (@cases $database:ty; $($theme:ident { $($case:ident)* })*) => {
        mod server {$(
            mod $theme {$(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::databases::$theme::$case::<$database>().await;
                }
            )*}
        )*}
    };
}
pub(crate) use databases;
