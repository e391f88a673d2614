//! Scripts over connections of `sqlx`.
//!
//! The connections are those of the manager's own thread, whatever pool the
//! settings come from: a connection of `sqlx` belongs to the runtime that made
//! it, and a pool that is shared with the bodies could be taken up by bodies
//! that wait for a lock, while its holder waits for a connection to give it
//! back.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sqlx::pool::PoolConnection;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use sqlx::pool::PoolOptions;
use sqlx::{Connection as _, Pool, Row as _};
use tokio::sync::Semaphore;

use super::driver::{Answer, Cell, Column, Driver, Outcome, Row};
use crate::backend::BackendError;

/// What is particular to a database that is reached through `sqlx`.
pub(super) trait Flavour: sqlx::Database + fmt::Debug {
    /// How long to wait before an attempt is repeated, the first time and at
    /// most.
    const PAUSES: (Duration, Duration);

    /// It is a file: no connection to it is forgotten on the way, and a process
    /// that ends leaves files behind which closing one removes.
    const IS_FILE: bool = false;

    /// What an error means.
    fn judge(place: &Place, error: sqlx::Error) -> Failure;

    /// No connection was to be had.
    fn unreachable(place: &Place) -> BackendError {
        BackendError::unavailable(format!(
            "{place} could not be reached within {:?}; check that it runs and that the URL names \
             its host and port",
            place.request_timeout
        ))
    }

    /// A script was not answered in time.
    fn silent(place: &Place) -> Failure;

    /// Whether a connection is of no more use after an error.
    fn is_over(_error: &sqlx::Error) -> bool {
        false
    }

    /// Runs a script, no longer than until the deadline: `None` if it was not
    /// answered by then. A database that is no server always answers.
    fn run<'a>(
        connection: &'a mut Self::Connection,
        script: &'a str,
        deadline: Instant,
    ) -> impl Future<Output = Option<Result<Vec<Self::Row>, sqlx::Error>>> + Send + 'a {
        async move {
            let answer = Self::fetch(connection, script);
            tokio::time::timeout_at(deadline.into(), answer).await.ok()
        }
    }

    /// Runs a script as one message.
    fn fetch<'a>(connection: &'a mut Self::Connection, script: &'a str) -> Rows<'a, Self>;

    /// Reads a cell. The column's type is not checked: what is a number to one
    /// statement is a short one to another.
    fn cell(row: &Self::Row, index: usize, column: Column) -> Result<Cell, sqlx::Error>;
}

pub(super) type Rows<'a, DB> = Pin<
    Box<dyn Future<Output = Result<Vec<<DB as sqlx::Database>::Row>, sqlx::Error>> + Send + 'a>,
>;

/// The same words for each database: `sqlx` knows only the concrete types.
macro_rules! fetch_and_cell {
    () => {
        fn fetch<'a>(
            connection: &'a mut Self::Connection,
            script: &'a str,
        ) -> $crate::backend::sql::pooled::Rows<'a, Self> {
            sqlx::Executor::fetch_all(connection, sqlx::raw_sql(script))
        }

        fn cell(
            row: &Self::Row,
            index: usize,
            column: $crate::backend::sql::driver::Column,
        ) -> Result<$crate::backend::sql::driver::Cell, sqlx::Error> {
            use $crate::backend::sql::driver::{Cell, Column};
            Ok(match column {
                Column::Int => Cell::Int(sqlx::Row::try_get_unchecked(row, index)?),
                Column::Text => Cell::Text(sqlx::Row::try_get_unchecked(row, index)?),
            })
        }
    };
}
pub(super) use fetch_and_cell;

/// Why an attempt failed.
pub(super) enum Failure {
    /// It was undone, and may be repeated: a deadlock, a database that is busy.
    Undone(BackendError),
    /// The same, as somebody keeps a row that it needs.
    #[cfg_attr(
        not(any(feature = "mysql", feature = "postgres")),
        expect(dead_code, reason = "a file is kept as a whole")
    )]
    Kept(BackendError),
    /// Nobody knows whether it was run. It may be repeated too.
    #[cfg_attr(
        not(any(feature = "mysql", feature = "postgres")),
        expect(dead_code, reason = "a file always answers")
    )]
    Broken(BackendError),
    /// It would fail again.
    Refused(BackendError),
}

impl Failure {
    fn before_it_was_sent(self) -> Self {
        match self {
            Self::Broken(error) | Self::Kept(error) => Self::Undone(error),
            other => other,
        }
    }
}

/// A database as it is named in messages, where no password is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) request_timeout: Duration,
}

impl Place {
    /// By when what is asked from now on is to be answered.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.request_timeout
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// An idle connection is closed after this time: before a firewall forgets it,
/// as a rule.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const IDLE: Duration = Duration::from_secs(30);

/// When nothing has been answered for so long, a connection has to show that it
/// carries anything before a script is sent over it: who forgets one that is
/// idle tells nobody.
const QUIET: Duration = Duration::from_secs(5);

/// It shows that in this time.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// The settings of a pool of dlock's own, from those of a user's.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn own_pool<DB: sqlx::Database>(
    options: PoolOptions<DB>,
    most: u32,
    request_timeout: Duration,
) -> PoolOptions<DB> {
    let idle = options.get_idle_timeout().unwrap_or(IDLE);
    options
        .max_connections(most)
        .min_connections(0)
        .acquire_timeout(request_timeout)
        .idle_timeout(idle.min(IDLE))
        // See `Pooled::shows_life`.
        .test_before_acquire(false)
}

/// Runs scripts over a pool of its own.
pub(super) struct Pooled<DB: Flavour> {
    pool: Pool<DB>,
    place: Place,
    /// As many as there are connections. Who has to be in time goes past those
    /// who wait here, and so has at most one of them before it.
    turns: Semaphore,
    /// When something was last answered.
    answered: Mutex<Instant>,
}

impl<DB: Flavour> fmt::Debug for Pooled<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled")
            .field("place", &self.place.name)
            .finish_non_exhaustive()
    }
}

impl<DB: Flavour> Pooled<DB> {
    pub(super) fn new(pool: Pool<DB>, place: Place) -> Self {
        let most = usize::try_from(pool.options().get_max_connections()).unwrap_or(usize::MAX);
        Self {
            pool,
            place,
            turns: Semaphore::new(most.min(Semaphore::MAX_PERMITS)),
            answered: Mutex::new(Instant::now()),
        }
    }
}

/// The pauses between attempts: doubled each time, up to a bound, and never the
/// same for two callers.
struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        pause.mul_f64(0.5 + fastrand::f64())
    }
}

#[async_trait]
impl<DB: Flavour> Driver for Pooled<DB> {
    async fn run(
        &self,
        script: &str,
        columns: &'static [Column],
        deadline: Instant,
    ) -> Result<Answer, BackendError> {
        match self.repeat(script, columns, deadline, false).await? {
            Outcome::Answered(answer) => Ok(answer),
            Outcome::Kept(error) => Err(error),
        }
    }

    async fn run_in_time(
        &self,
        script: &str,
        columns: &'static [Column],
        deadline: Instant,
    ) -> Result<Outcome, BackendError> {
        self.repeat(script, columns, deadline, true).await
    }

    fn always_answers(&self) -> bool {
        DB::IS_FILE
    }

    async fn rest(&self) {
        if !DB::IS_FILE {
            return;
        }
        for _ in 0..self.pool.size() {
            if let Ok(connection) = self.pool.acquire().await {
                let _ = connection.close().await;
            }
        }
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

impl<DB: Flavour> Pooled<DB> {
    async fn repeat(
        &self,
        script: &str,
        columns: &'static [Column],
        deadline: Instant,
        in_time: bool,
    ) -> Result<Outcome, BackendError> {
        let (next, longest) = DB::PAUSES;
        let mut backoff = Backoff { next, longest };
        let mut repeated = false;
        loop {
            let turn = if in_time {
                None
            } else {
                let turn = tokio::time::timeout_at(deadline.into(), self.turns.acquire()).await;
                Some(turn.map_err(|_| DB::unreachable(&self.place))?)
            };
            let attempt = self.attempt(script, columns, deadline).await;
            drop(turn);
            let failure = match attempt {
                Ok((sent_at, rows)) => {
                    return Ok(Outcome::Answered(Answer {
                        rows,
                        sent_at,
                        repeated,
                    }));
                }
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Kept(error)) if in_time => return Ok(Outcome::Kept(error)),
                Err(Failure::Undone(error) | Failure::Kept(error)) => error,
                Err(Failure::Broken(error)) => {
                    repeated = true;
                    error
                }
            };
            let pause = backoff.pause();
            if Instant::now() + pause >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt(
        &self,
        script: &str,
        columns: &'static [Column],
        deadline: Instant,
    ) -> Result<(Instant, Vec<Row>), Failure> {
        let mut connection = self.connection(deadline).await?;
        let sent_at = Instant::now();
        let answer = DB::run(&mut connection, script, deadline).await;
        if matches!(answer, Some(Ok(_) | Err(sqlx::Error::Database(_)))) {
            *self.answered() = Instant::now();
        }
        match answer {
            Some(Ok(rows)) => match read::<DB>(&rows, columns) {
                Ok(rows) => Ok((sent_at, rows)),
                Err(error) => Err(DB::judge(&self.place, error)),
            },
            Some(Err(error)) => {
                clear(connection, &error, deadline).await;
                Err(DB::judge(&self.place, error))
            }
            None => {
                // What it says from here on would answer another question.
                connection.close_on_drop();
                Err(DB::silent(&self.place))
            }
        }
    }

    /// A connection for one script.
    async fn connection(&self, deadline: Instant) -> Result<PoolConnection<DB>, Failure> {
        let acquire = tokio::time::timeout_at(deadline.into(), self.pool.acquire());
        let mut connection = match acquire.await {
            Ok(Ok(connection)) => connection,
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => {
                return Err(Failure::Undone(DB::unreachable(&self.place)));
            }
            // Whatever has happened, the script was not sent.
            Ok(Err(error)) => return Err(DB::judge(&self.place, error).before_it_was_sent()),
        };
        if DB::IS_FILE
            || self.answered().elapsed() < QUIET
            || self.shows_life(&mut connection).await
        {
            return Ok(connection);
        }
        // They were idle together. They are dropped, not closed: that may take
        // time, and a place in the pool meanwhile.
        drop(connection.detach());
        while let Some(idle) = self.pool.try_acquire() {
            drop(idle.detach());
        }
        *self.answered() = Instant::now();
        Err(Failure::Undone(DB::unreachable(&self.place)))
    }

    async fn shows_life(&self, connection: &mut PoolConnection<DB>) -> bool {
        let limit = SIGN_OF_LIFE.min(self.place.request_timeout / 4);
        let sign = tokio::time::timeout(limit, connection.ping()).await;
        matches!(sign, Ok(Ok(())))
    }

    fn answered(&self) -> MutexGuard<'_, Instant> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A script that failed may have left its transaction open.
async fn clear<DB: Flavour>(
    mut connection: PoolConnection<DB>,
    error: &sqlx::Error,
    deadline: Instant,
) {
    let works = matches!(error, sqlx::Error::Database(_)) && !DB::is_over(error) && {
        let rollback = DB::fetch(&mut connection, "ROLLBACK");
        let rolled_back = tokio::time::timeout_at(deadline.into(), rollback).await;
        // An error that the database answers with says that there was none.
        matches!(rolled_back, Ok(Ok(_) | Err(sqlx::Error::Database(_))))
    };
    if !works {
        connection.close_on_drop();
    }
}

/// The rows that have these columns: other statements answer too.
fn read<DB: Flavour>(rows: &[DB::Row], columns: &[Column]) -> Result<Vec<Row>, sqlx::Error> {
    rows.iter()
        .filter(|row| row.len() == columns.len())
        .map(|row| {
            let cells = columns.iter().enumerate();
            let cells = cells.map(|(index, column)| DB::cell(row, index, *column));
            cells.collect::<Result<_, _>>().map(Row)
        })
        .collect()
}
