//! The tables of a database.

use std::any::Any;
use std::marker::PhantomData;
use std::time::Duration;

use dlock::backend::{Mode, Request};
use dlock::bare::{self, Bare, Said};
use dlock::store::{Store, Want};
use sqlx::Row as _;

use crate::rules::Rules;
use crate::run::{Kept, KeptHolder, Process as _, Scene};
use crate::stores::{AtStore, Clock, opened};
use crate::support::wait::{HANG, until};

/// A connection of the test's own.
pub(crate) trait Rows {
    const BEGIN: &str;
    /// Milliseconds since 1970.
    const NOW: &str;

    /// Runs statements: all rows, as text.
    async fn rows(&mut self, sql: &str) -> Vec<Vec<String>>;
}

macro_rules! rows {
    ($connection:ty, $begin:literal, $now:literal) => {
        impl Rows for $connection {
            const BEGIN: &str = $begin;
            const NOW: &str = $now;

            async fn rows(&mut self, sql: &str) -> Vec<Vec<String>> {
                let rows = sqlx::Executor::fetch_all(self, sqlx::raw_sql(sql)).await;
                let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
                let read =
                    |row: &<<$connection as sqlx::Connection>::Database as sqlx::Database>::Row| {
                        let columns = 0..row.len();
                        columns
                            .map(|column| row.try_get_unchecked(column).expect("text"))
                            .collect()
                    };
                rows.iter().map(read).collect()
            }
        }
    };
}

/// A process cleans the tables 2 s after each look, and tells those whose turn it is then
/// once more. By so many milliseconds there is another look, unless the machine is held up.
const BETWEEN_LOOKS: i64 = 1_800;

pub(crate) struct AtTables<C, S, O> {
    connection: C,
    rules: Rules,
    opens: O,
    clock: Clock,
    /// When all was looked at last, by the database's clock; 0 before that.
    looked: i64,
    runs: usize,
    of: PhantomData<S>,
    _database: Box<dyn Any>,
}

#[cfg(feature = "postgres")]
rows!(
    sqlx::PgConnection,
    "BEGIN",
    "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
);

#[cfg(feature = "postgres")]
pub(crate) async fn postgres() -> impl Scene {
    use crate::databases::server::Server;
    use dlock::backend::postgres::Postgres;

    let server = Server::<crate::postgres::PostgreSql>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    let connection = server.connection(&database).await;
    AtTables::new(
        connection,
        crate::rules::POSTGRES,
        server,
        async move || {
            let postgres = Postgres::from_url(&url).expect("a valid URL");
            let postgres = postgres.create_tables(true);
            opened(async || bare::open(postgres.clone()).await).await
        },
    )
    .await
}

#[cfg(feature = "mysql")]
rows!(
    sqlx::MySqlConnection,
    "START TRANSACTION",
    "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"
);

#[cfg(feature = "mysql")]
pub(crate) async fn mysql() -> impl Scene {
    use crate::databases::server::Server;
    use dlock::backend::mysql::MySql;

    let server = Server::<crate::mysql::MariaDb>::shared().await;
    let database = server.database().await;
    let url = server.url(&database, server.port());
    let connection = server.connection(&database).await;
    AtTables::new(connection, crate::rules::MYSQL, server, async move || {
        let mysql = MySql::from_url(&url).expect("a valid URL");
        let mysql = mysql.create_tables(true);
        opened(async || bare::open(mysql.clone()).await).await
    })
    .await
}

#[cfg(feature = "sqlite")]
rows!(
    sqlx::SqliteConnection,
    "BEGIN IMMEDIATE",
    "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
);

#[cfg(feature = "sqlite")]
pub(crate) async fn sqlite() -> impl Scene {
    use crate::support::dir::TempDir;
    use dlock::backend::sqlite::Sqlite;
    use sqlx::ConnectOptions as _;
    use sqlx::sqlite::SqliteConnectOptions;

    let dir = TempDir::default();
    let path = dir.path().join("locks.db");
    let options = SqliteConnectOptions::new().filename(&path);
    let options = options.create_if_missing(true).busy_timeout(HANG);
    let connection = options.connect().await.expect("our own file");
    AtTables::new(connection, crate::rules::SQLITE, dir, async move || {
        let sqlite = Sqlite::from_url(&format!("sqlite:{}", path.display()));
        let sqlite = sqlite.expect("a valid URL");
        opened(async || bare::open(sqlite.clone()).await).await
    })
    .await
}

impl<C, S, O> AtTables<C, S, O>
where
    C: Rows,
    S: Store<Record = ()>,
    O: AsyncFnMut() -> Bare<S>,
{
    async fn new(connection: C, rules: Rules, database: impl Any, opens: O) -> Self {
        let mut scene = Self {
            connection,
            rules,
            opens,
            clock: Clock(0),
            looked: 0,
            runs: 0,
            of: PhantomData,
            _database: Box::new(database),
        };
        // It makes the tables.
        scene.open().await;
        scene
    }

    async fn number(&mut self, sql: &str) -> i64 {
        let rows = self.connection.rows(sql).await;
        rows[0][0].parse().expect("a number")
    }

    /// Has a process clean the tables: who has just come does so at once, if it is due.
    async fn clean(&mut self) {
        self.connection
            .rows("UPDATE dlock_meta SET cleaned_at = 0")
            .await;
        let mut cleans = self.open().await;
        let request = Request::new("scratch", Mode::Write, Duration::from_secs(60));
        let taken = cleans.take(&request, Want::First).await;
        taken.expect("an answer");
        let cleaned = async || self.number("SELECT cleaned_at FROM dlock_meta").await;
        until("the tables are cleaned", cleaned, |&at| at > 0).await;
        // Behind that, the places of the dead.
        let places = async || self.number("SELECT COUNT(*) FROM dlock_queue").await;
        until("nobody waits", places, |&count| count == 0).await;
    }
}

impl<C, S, O> Scene for AtTables<C, S, O>
where
    C: Rows,
    S: Store<Record = ()>,
    O: AsyncFnMut() -> Bare<S>,
{
    type Process = AtStore<S>;

    fn rules(&self) -> Rules {
        self.rules
    }

    async fn open(&mut self) -> AtStore<S> {
        let mut bare = (self.opens)().await;
        // Messages come from then on.
        while self.rules.tells_of_ends && bare.says(HANG).await != Some(Said::Missed) {}
        AtStore { bare, hears: None }
    }

    async fn notices(&mut self, _: usize) {}

    async fn look(&mut self, pass: u64) -> Kept {
        let now = C::NOW;
        let looked = self.number(&format!("SELECT {now}")).await;
        let shift = self.clock.shift(pass, looked);
        let mut late = self.clock.passes(pass, looked);
        let since = looked - std::mem::replace(&mut self.looked, looked);
        if since < looked && since > BETWEEN_LOOKS {
            late = late.max(since);
        }
        let mut sql = format!("UPDATE dlock_meta SET cleaned_at = {looked};");
        if shift > 0 {
            sql = format!(
                "{begin};
                UPDATE dlock_lock SET expires_at = expires_at - {shift};
                UPDATE dlock_reader SET expires_at = expires_at - {shift};
                UPDATE dlock_process SET alive_until = alive_until - {shift};
                {sql}
                COMMIT;",
                begin = C::BEGIN
            );
        }
        sql += &format!(
            "SELECT name, mode, owner, expires_at - {moved}, waited FROM dlock_lock;
            SELECT name, owner, expires_at - {moved} FROM dlock_reader;
            SELECT name, owner FROM dlock_queue ORDER BY name, ticket;",
            moved = looked - late
        );
        let mut kept = Kept {
            late: late.cast_unsigned(),
            ..Kept::default()
        };
        let left = |text: &String| text.parse::<i64>().expect("a time");
        for row in self.connection.rows(&sql).await {
            let lock = kept.locks.entry(row[0].clone()).or_default();
            if let [_, _, _, ends, _] = &row[..] {
                lock.ends.push(left(ends));
            }
            let queue = lock.queue.get_or_insert_default();
            let holder = |owner: &String, left| KeptHolder {
                owner: owner.clone(),
                left,
                unclaimed: false,
            };
            match &row[..] {
                [_, mode, owner, ends, _] => {
                    lock.read = mode == "r";
                    let lasts = !owner.is_empty() && left(ends) > 0;
                    match &**mode {
                        "w" if lasts => lock.holders.push(holder(owner, left(ends))),
                        "d" if lasts => lock.done = Some(holder(owner, left(ends))),
                        _ => {}
                    }
                    // Nobody's ttl is as long.
                    if left(ends) > 1_000_000 {
                        kept.endless.push(row[0].clone());
                    }
                }
                [_, owner, ends] => {
                    // They have what the row of the lock says.
                    if lock.read && left(ends) > 0 {
                        lock.holders.push(holder(owner, left(ends)));
                    }
                }
                [_, owner] => queue.push(owner.clone()),
                _ => panic!("{row:?}"),
            }
        }
        kept
    }

    async fn left(&mut self) -> Vec<String> {
        self.runs += 1;
        // It takes two connections, and two more processes.
        if self.runs % 10 != 1 {
            return Vec::new();
        }
        self.clean().await;
        self.clean().await;
        let rows = self.connection.rows(
            "SELECT name FROM dlock_lock WHERE name <> 'scratch'; SELECT name FROM dlock_reader;
            SELECT process FROM dlock_process",
        );
        rows.await.concat()
    }

    async fn wipe(&mut self) -> bool {
        let wipe = format!(
            "{begin};
            DELETE FROM dlock_queue;
            DELETE FROM dlock_reader;
            DELETE FROM dlock_process;
            UPDATE dlock_lock SET owner = '', mode = 'w', expires_at = 0, waited = 0;
            UPDATE dlock_meta SET cleaned_at = {now};
            COMMIT",
            begin = C::BEGIN,
            now = C::NOW
        );
        self.connection.rows(&wipe).await;
        (self.clock, self.looked) = (Clock(0), 0);
        true
    }
}
