//! Scripts over connections of `sqlx`.
//!
//! The connections are those of the manager's own thread, whatever pool the
//! settings come from: a connection of `sqlx` belongs to the runtime that made
//! it, and a pool that is shared with the bodies could be taken up by bodies
//! that wait for a lock, while its holder waits for a connection to give it
//! back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use sqlx::pool::PoolOptions;
use sqlx::{Connection as _, Pool, Row as _};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::database::Database;
use super::errors::{Endpoint, RetryPolicy};
use super::failed::Failed;
use super::rows::{Answer, Column, Row};

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

/// In which order scripts are given connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// One after the other.
    InTurn,
    /// Before all those: leases run out otherwise. At most one of them is before
    /// it.
    Urgent,
}

/// Runs scripts over a pool of its own.
pub(super) struct Pooled<D: Database> {
    pub(super) pool: Pool<D::Sql>,
    pub(super) endpoint: Endpoint,
    /// As many as there are connections.
    turns: Semaphore,
    /// When something was last answered.
    answered: Mutex<Instant>,
    /// Nobody is thought to need a connection again.
    rests: AtomicBool,
}

impl<D: Database> Pooled<D> {
    pub(super) fn new(pool: Pool<D::Sql>, endpoint: Endpoint) -> Self {
        let most = usize::try_from(pool.options().get_max_connections()).unwrap_or(usize::MAX);
        Self {
            pool,
            endpoint,
            turns: Semaphore::new(most.min(Semaphore::MAX_PERMITS)),
            answered: Mutex::new(Instant::now()),
            rests: AtomicBool::new(false),
        }
    }

    /// Runs a script as one transaction. With an error that came after it was sent,
    /// when that was.
    ///
    /// Not to be dropped in between: a connection would be left in the middle of an
    /// answer.
    pub(super) async fn run(
        &self,
        script: &str,
        columns: &[Column],
        priority: Priority,
        deadline: Instant,
    ) -> Result<Answer, (Failed, Instant)> {
        let begun = Instant::now();
        let _turn = self
            .turn(priority, deadline)
            .await
            .map_err(|failed| (failed, begun))?;
        let connection = self.connection(deadline).await;
        let mut connection = connection.map_err(|failed| (failed, begun))?;
        let sent_at = Instant::now();
        let answer = D::run(&mut connection, script, deadline).await;
        if matches!(answer, Some(Ok(_) | Err(sqlx::Error::Database(_)))) {
            *self.answered() = Instant::now();
        }
        let failed = match answer {
            Some(Ok(rows)) => {
                let rows = read::<D>(&rows, columns);
                if D::IS_FILE && self.rests() {
                    let _ = connection.close().await;
                }
                match rows {
                    Ok(rows) => return Ok(Answer { rows, sent_at }),
                    Err(error) => Failed::of::<D>(&self.endpoint, error),
                }
            }
            Some(Err(error)) => {
                let answered = matches!(error, sqlx::Error::Database(_));
                let failed = Failed::of::<D>(&self.endpoint, error);
                let works = answered && failed.retry != RetryPolicy::Reconnect;
                clear::<D>(connection, works, deadline).await;
                failed
            }
            None => {
                // What it says from here on would answer another question.
                connection.close_on_drop();
                Failed::silent()
            }
        };
        Err((failed, sent_at))
    }

    async fn turn(
        &self,
        priority: Priority,
        deadline: Instant,
    ) -> Result<Option<SemaphorePermit<'_>>, Failed> {
        if priority == Priority::Urgent {
            return Ok(None);
        }
        match tokio::time::timeout_at(deadline.into(), self.turns.acquire()).await {
            Ok(turn) => Ok(turn.ok()),
            Err(_) => Err(Failed::not_reached::<D>(&self.endpoint)),
        }
    }

    /// A connection for one script.
    async fn connection(&self, deadline: Instant) -> Result<PoolConnection<D::Sql>, Failed> {
        let not_reached = || Failed::not_reached::<D>(&self.endpoint);
        let acquire = tokio::time::timeout_at(deadline.into(), self.pool.acquire());
        let mut connection = match acquire.await {
            Ok(Ok(connection)) => connection,
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => return Err(not_reached()),
            Ok(Err(error)) => {
                return Err(Failed::of::<D>(&self.endpoint, error).before_it_was_sent());
            }
        };
        if D::IS_FILE || self.answered().elapsed() < QUIET || self.shows_life(&mut connection).await
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
        Err(not_reached())
    }

    async fn shows_life(&self, connection: &mut PoolConnection<D::Sql>) -> bool {
        let limit = SIGN_OF_LIFE.min(self.endpoint.request_timeout / 4);
        let sign = tokio::time::timeout(limit, connection.ping()).await;
        matches!(sign, Ok(Ok(())))
    }

    pub(super) fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    /// Somebody needs a connection.
    pub(super) fn is_used(&self) {
        self.rests.store(false, Ordering::Relaxed);
    }

    /// Nobody does, until they are used again.
    pub(super) fn is_unused(&self) {
        self.rests.store(true, Ordering::Relaxed);
    }

    /// Closes those that are open, when nothing runs over them.
    pub(super) async fn close_all(&self) {
        for _ in 0..self.pool.size() {
            if let Ok(connection) = self.pool.acquire().await {
                let _ = connection.close().await;
            }
        }
    }

    fn answered(&self) -> MutexGuard<'_, Instant> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A script that failed may have left its transaction open.
async fn clear<D: Database>(
    mut connection: PoolConnection<D::Sql>,
    works: bool,
    deadline: Instant,
) {
    let works = works && {
        let rollback = D::fetch(&mut connection, "ROLLBACK");
        let rolled_back = tokio::time::timeout_at(deadline.into(), rollback).await;
        // An error that the database answers with says that there was none.
        matches!(rolled_back, Ok(Ok(_) | Err(sqlx::Error::Database(_))))
    };
    if !works {
        connection.close_on_drop();
    }
}

/// The rows that have these columns: other statements answer too.
fn read<D: Database>(
    rows: &[<D::Sql as sqlx::Database>::Row],
    columns: &[Column],
) -> Result<Vec<Row>, sqlx::Error> {
    rows.iter()
        .filter(|row| row.len() == columns.len())
        .map(|row| {
            let cells = columns.iter().enumerate();
            let cells = cells.map(|(index, column)| D::cell(row, index, *column));
            cells.collect::<Result<_, _>>().map(Row)
        })
        .collect()
}
