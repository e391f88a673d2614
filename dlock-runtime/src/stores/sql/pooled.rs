//! Scripts over connections of `sqlx`.
//!
//! The connections are those of the manager's own thread, whatever pool the
//! settings come from: a connection of `sqlx` belongs to the runtime that made
//! it, and a pool that is shared with the bodies could be taken up by bodies
//! that wait for a lock, while its holder waits for a connection to give it
//! back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Pool};
use tokio::sync::Semaphore;

use super::database::{Database, RetryPolicy, Row};
use super::errors::{Endpoint, Failed};
use crate::store::Cause;
use crate::sync::Mutex;

/// When nothing has been answered for so long, a connection has to show that it
/// carries anything before a script is sent over it: who forgets one that is
/// idle tells nobody.
const QUIET: Duration = Duration::from_secs(5);

/// It shows that in this time.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// In which order scripts are given connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// One after the other.
    InTurn,
    /// Before all those: leases run out otherwise. At most one of them is before
    /// it.
    Urgent,
}

/// What a script answers with.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// When the script was sent.
    pub(super) sent_at: Instant,
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

    /// Runs a script as one transaction.
    ///
    /// Not to be dropped in between: a connection would be left in the middle of an
    /// answer.
    pub(super) async fn run(
        &self,
        script: &str,
        columns: usize,
        priority: Priority,
        deadline: Instant,
    ) -> Result<Answer, Failed> {
        let _turn = match priority {
            Priority::InTurn => {
                let turn = tokio::time::timeout_at(deadline.into(), self.turns.acquire());
                Some(turn.await.map_err(|_| self.endpoint.not_reached::<D>())?)
            }
            Priority::Urgent => None,
        };
        let mut connection = self.connection(deadline).await?;
        let sent_at = Instant::now();
        let run = D::run(&mut connection, script, columns);
        let answer = if D::IS_FILE {
            // A script that is given up in the middle would leave its transaction open.
            Some(run.await)
        } else {
            tokio::time::timeout_at(deadline.into(), run).await.ok()
        };
        let is_told = matches!(answer, Some(Ok(_) | Err(sqlx::Error::Database(_))));
        if is_told {
            *self.answered.lock() = Instant::now();
        }
        match answer {
            Some(Ok(rows)) => {
                if D::IS_FILE && self.rests() {
                    let _ = connection.close().await;
                }
                Ok(Answer { rows, sent_at })
            }
            Some(Err(error)) => {
                let failed = self.endpoint.failed::<D>(error, sent_at);
                let works = is_told && failed.retry != RetryPolicy::Reconnect;
                clear::<D>(connection, works, deadline).await;
                Err(failed)
            }
            None => {
                // What it says from here on would answer another question.
                connection.close_on_drop();
                Err(Failed {
                    retry: RetryPolicy::Reconnect,
                    cause: Cause::Silence,
                    sent_at,
                })
            }
        }
    }

    /// A connection for one script.
    async fn connection(&self, deadline: Instant) -> Result<PoolConnection<D::Sql>, Failed> {
        let acquire = tokio::time::timeout_at(deadline.into(), self.pool.acquire());
        let mut connection = match acquire.await {
            Ok(Ok(connection)) => connection,
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => {
                return Err(self.endpoint.not_reached::<D>());
            }
            Ok(Err(error)) => {
                let mut failed = self.endpoint.failed::<D>(error, Instant::now());
                // Nothing was sent.
                if failed.retry != RetryPolicy::Stop {
                    failed.retry = RetryPolicy::Again;
                }
                return Err(failed);
            }
        };
        if D::IS_FILE
            || self.answered.lock().elapsed() < QUIET
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
        *self.answered.lock() = Instant::now();
        Err(self.endpoint.not_reached::<D>())
    }

    async fn shows_life(&self, connection: &mut PoolConnection<D::Sql>) -> bool {
        let limit = SIGN_OF_LIFE.min(self.endpoint.request_timeout / 4);
        let sign = tokio::time::timeout(limit, connection.ping()).await;
        matches!(sign, Ok(Ok(())))
    }

    pub(super) fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    /// Whether nobody is thought to need a connection, until somebody does.
    pub(super) fn rest(&self, rests: bool) {
        self.rests.store(rests, Ordering::Relaxed);
    }

    /// Closes those that are open, when nothing runs over them.
    pub(super) async fn close_all(&self) {
        for _ in 0..self.pool.size() {
            if let Ok(connection) = self.pool.acquire().await {
                let _ = connection.close().await;
            }
        }
    }
}

/// A script that failed may have left its transaction open.
async fn clear<D: Database>(
    mut connection: PoolConnection<D::Sql>,
    works: bool,
    deadline: Instant,
) {
    let works = works && {
        let rollback = D::run(&mut connection, "ROLLBACK", 0);
        let rolled_back = tokio::time::timeout_at(deadline.into(), rollback).await;
        // An error that the database answers with says that there was none.
        matches!(rolled_back, Ok(Ok(_) | Err(sqlx::Error::Database(_))))
    };
    if !works {
        connection.close_on_drop();
    }
}
