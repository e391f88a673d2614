//! The connections of a manager to its database.
//!
//! They are of the manager's own thread, and no bodies that wait for a lock take them up
//! while its holder needs one. A pool of `sqlx` opens them, with what the service does with
//! each new one, and nothing more. It would ask each that comes back whether it is alive: a second round trip for
//! each script, and one without a limit, so that a network that falls silent just then
//! keeps all of its places taken (`return_to_pool` in `sqlx-core` 0.8.6).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::{Connection as _, Pool};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::database::{Connection, Database, RetryPolicy, SqlConfig};
use super::errors::{Endpoint, Failed};
use super::lent::Lent;
use crate::engine::time::Time;
use crate::sync::Mutex;

/// When nothing has come over a connection for so long, it has to show that it carries
/// anything before a script is sent over it: who forgets one that is idle tells nobody.
const QUIET: Duration = Duration::from_secs(5);

/// It shows that in this time.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// An idle connection to a server is closed after this time: before a firewall forgets
/// it, as a rule.
const IDLE: Duration = Duration::from_secs(30);

/// A server is told that a connection ends, if it takes no longer than this.
const GOODBYE: Duration = Duration::from_secs(1);

/// In which order scripts are given connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// One after the other.
    InTurn,
    /// Before all those: leases run out otherwise. At most one of them is before
    /// it.
    Urgent,
}

pub(super) struct Connections<D: Database> {
    opener: Pool<D::Sql>,
    pub(super) endpoint: Endpoint,
    /// Those that are open and not in use, the one that was used last at the end.
    idle: Mutex<Vec<Open<D>>>,
    /// There is an idle one, where there was none.
    came_back: Notify,
    /// As many as there may be connections.
    places: Semaphore,
    /// As many again: who has none does not wait for a place yet.
    turns: Semaphore,
    /// An idle one is closed after this time.
    idle_limit: Option<Duration>,
    /// One that is so old is replaced.
    age_limit: Option<Duration>,
    /// What is run by somebody who may stand still, and has one.
    lent: Mutex<Option<Lent>>,
    /// Nobody is thought to need one again.
    rests: AtomicBool,
}

/// An open connection.
struct Open<D: Database> {
    connection: Connection<D>,
    opened_at: Instant,
    /// When it last carried something.
    answered_at: Instant,
    /// It has prepared the statements of its own.
    is_prepared: bool,
}

/// The right to one connection.
struct Place<'a> {
    _place: SemaphorePermit<'a>,
    _turn: Option<SemaphorePermit<'a>>,
}

/// A connection for one script. Dropped, it is closed, at once: the server need not
/// answer.
pub(super) struct Taken<'a, D: Database> {
    open: Open<D>,
    _place: Place<'a>,
}

impl<D: Database> Taken<'_, D> {
    pub(super) fn connection(&mut self) -> &mut Connection<D> {
        &mut self.open.connection
    }

    /// Whether it has prepared nothing yet. It does now.
    pub(super) fn is_new(&mut self) -> bool {
        !std::mem::replace(&mut self.open.is_prepared, true)
    }
}

impl<D: Database> Connections<D> {
    pub(super) fn new(config: &SqlConfig<D>, endpoint: Endpoint) -> Self {
        let most = usize::try_from(config.max_connections).unwrap_or(usize::MAX);
        let most = most.min(Semaphore::MAX_PERMITS);
        let idle = config.pool.get_idle_timeout().unwrap_or(IDLE).min(IDLE);
        Self {
            opener: config.opener(endpoint.request_timeout),
            endpoint,
            idle: Mutex::new(Vec::new()),
            came_back: Notify::new(),
            places: Semaphore::new(most),
            turns: Semaphore::new(most),
            idle_limit: (!D::IS_FILE).then_some(idle),
            age_limit: config.pool.get_max_lifetime(),
            lent: Mutex::default(),
            rests: AtomicBool::new(false),
        }
    }

    /// One for a script.
    pub(super) async fn take(
        &self,
        priority: Priority,
        deadline: Instant,
    ) -> Result<Taken<'_, D>, Failed> {
        let taken = tokio::time::timeout_at(deadline.into(), async {
            let place = self.place(priority).await?;
            let idle = self.idle.lock().pop();
            let open = match idle {
                Some(open) => self.if_alive(open).await?,
                None => self.open().await?,
            };
            Ok(Taken {
                open,
                _place: place,
            })
        });
        taken
            .await
            .unwrap_or_else(|_| Err(self.endpoint.not_reached::<D>()))
    }

    async fn place(&self, priority: Priority) -> Result<Place<'_>, Failed> {
        let closed = |_| self.failed(sqlx::Error::PoolClosed);
        if self.places.available_permits() == 0 || self.turns.available_permits() == 0 {
            self.recall();
        }
        let turn = match priority {
            Priority::InTurn => Some(self.turns.acquire().await.map_err(closed)?),
            Priority::Urgent => None,
        };
        Ok(Place {
            _place: self.places.acquire().await.map_err(closed)?,
            _turn: turn,
        })
    }

    /// Whether one is open and not in use.
    pub(super) fn has_idle(&self) -> bool {
        !self.idle.lock().is_empty()
    }

    /// This takes one, and is run by who waits for it.
    pub(super) fn lend(&self, lent: &Lent) {
        let before = self.lent.lock().replace(lent.clone());
        if let Some(before) = before {
            before.recall();
        }
    }

    /// What is run elsewhere is run by the manager from now on.
    pub(super) fn recall(&self) {
        let lent = self.lent.lock().take();
        if let Some(lent) = lent {
            lent.recall();
        }
    }

    async fn open(&self) -> Result<Open<D>, Failed> {
        let opened = self.opener.acquire().await;
        let opened = opened.map_err(|error| match error {
            sqlx::Error::PoolTimedOut => self.endpoint.not_reached::<D>(),
            error => self.failed(error),
        })?;
        let now = Instant::now();
        Ok(Open {
            connection: opened.detach(),
            opened_at: now,
            answered_at: now,
            is_prepared: false,
        })
    }

    /// No connection was had, so nothing was sent.
    fn failed(&self, error: sqlx::Error) -> Failed {
        let mut failed = self.endpoint.failed::<D>(error, Instant::now());
        if failed.retry != RetryPolicy::Stop {
            failed.retry = RetryPolicy::Again;
        }
        failed.was_sent = false;
        failed
    }

    async fn if_alive(&self, mut open: Open<D>) -> Result<Open<D>, Failed> {
        if D::IS_FILE || open.answered_at.elapsed() < QUIET {
            return Ok(open);
        }
        let limit = SIGN_OF_LIFE.min(self.endpoint.request_timeout / 4);
        let sign = tokio::time::timeout(limit, open.connection.ping()).await;
        if matches!(sign, Ok(Ok(()))) {
            open.answered_at = Instant::now();
            return Ok(open);
        }
        // The others have been idle for longer.
        self.drop_idle();
        Err(self.endpoint.not_reached::<D>())
    }

    /// It has answered, and is needed no more.
    pub(super) async fn give_back(&self, taken: Taken<'_, D>) {
        let Taken { mut open, _place } = taken;
        open.answered_at = Instant::now();
        let age = open.answered_at - open.opened_at;
        let is_worn = self.age_limit.is_some_and(|limit| age > limit);
        let rests = D::IS_FILE && self.rests();
        if is_worn || rests || self.places.is_closed() {
            say_goodbye(open).await;
            return;
        }
        let mut idle = self.idle.lock();
        if idle.is_empty() {
            self.came_back.notify_one();
        }
        idle.push(open);
    }

    /// Closes those that have been idle for long, until it is dropped.
    pub(super) async fn close_unneeded(&self, time: &Time) {
        let Some(limit) = self.idle_limit else {
            return;
        };
        loop {
            let longest_idle = self.idle.lock().first().map(|open| open.answered_at);
            let Some(since) = longest_idle else {
                self.came_back.notified().await;
                continue;
            };
            let due = since + limit;
            time.sleep(time.after(due.saturating_duration_since(Instant::now())))
                .await;
            let unneeded: Vec<_> = {
                let mut idle = self.idle.lock();
                let count = idle.partition_point(|open| open.answered_at <= since);
                idle.drain(..count).collect()
            };
            for open in unneeded {
                say_goodbye(open).await;
            }
        }
    }

    /// Whether nobody is thought to need a connection, until somebody does.
    pub(super) fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    pub(super) fn rest(&self, rests: bool) {
        if rests {
            self.recall();
        }
        self.rests.store(rests, Ordering::Relaxed);
    }

    /// Closes those that are not in use, at once: the server need not answer.
    pub(super) fn drop_idle(&self) {
        self.idle.lock().clear();
    }

    /// Closes those that are not in use.
    pub(super) async fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        for open in idle {
            say_goodbye(open).await;
        }
    }

    /// Gives out no more of them. Those that are in use are closed when they come back.
    pub(super) fn close(&self) {
        self.recall();
        self.turns.close();
        self.places.close();
    }
}

async fn say_goodbye<D: Database>(open: Open<D>) {
    let _ = tokio::time::timeout(GOODBYE, open.connection.close()).await;
}
