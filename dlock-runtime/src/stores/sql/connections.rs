//! The connections of a manager to its database, and running a script over one of them.
//!
//! They belong to the manager's own thread. Bodies do not use them, so those that wait for a lock
//! cannot keep its holder from giving it back. A pool of `sqlx` opens the connections, with what
//! the service does with each new one, and nothing else. Connections that went back to the pool
//! would be pinged by it: a second round trip for each script, and one without a limit. If the
//! network fell silent just then, the pings would keep all places of the pool taken
//! (`return_to_pool` in `sqlx-core` 0.8.6).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sqlx::{Connection as _, Pool};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::database::{Connection, Database, RetryPolicy, Row, SqlConfig};
use super::errors::{Endpoint, Failed};
use super::work::{SingleStatement, Work};
use crate::engine::time::Time;
use crate::store::Cause;
use crate::sync::Mutex;

/// A connection over which nothing has come for this long must answer a ping before a script is
/// sent over it: a firewall that has forgotten an idle connection tells nobody.
const QUIET: Duration = Duration::from_secs(5);

/// How long the answer to that ping may take.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// An idle connection to a server is closed after this time, usually before a firewall forgets it.
const IDLE: Duration = Duration::from_secs(30);

/// How long it may take to tell the server that a connection ends.
const GOODBYE: Duration = Duration::from_secs(1);

/// In which order scripts are given connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// In the order in which they ask.
    InTurn,
    /// Also in order, but over one connection of four at a time: nobody waits for the answer, and it
    /// may wait for a row that another session keeps.
    Behind,
    /// Ahead of those that wait for their turn, since leases run out otherwise.
    Urgent,
}

pub(super) struct Connections<D: Database> {
    opener: Pool<D::Sql>,
    file: Option<DatabaseFile>,
    pub(super) endpoint: Endpoint,
    /// The open connections that are not in use. The most recently used is last.
    idle: Mutex<Vec<Open<D>>>,
    /// Notified when there is an idle connection and was none before.
    came_back: Notify,
    /// One permit for each connection that there may be.
    places: Semaphore,
    /// A script that asks in turn needs one of these before it waits for a place. If more than one
    /// connection is allowed, there is one permit less than places: all scripts that have one may
    /// wait for rows that other sessions keep, and an urgent script must not wait for that.
    turns: Semaphore,
    /// One of these is needed first for what nobody waits for. So however many such scripts wait for
    /// rows that other sessions keep, they do not use up the turns.
    behind: Semaphore,
    /// An idle connection is closed after this time.
    idle_limit: Option<Duration>,
    /// A connection that is older than this is closed when it comes back.
    age_limit: Option<Duration>,
    /// Set while nobody is expected to need a connection again.
    rests: AtomicBool,
}

struct Open<D: Database> {
    connection: Connection<D>,
    /// Which file was at the path before this connection was opened, if one was there.
    of_file: Option<FileId>,
    opened_at: Instant,
    /// When something last came over it.
    answered_at: Instant,
    /// Which statements it has prepared, as far as is known: a pooler may give each transaction
    /// another session.
    is_prepared: [bool; SingleStatement::ALL.len()],
}

/// The file of a database that is one.
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// The script that creates what tables are missing.
    tables: String,
    /// Which file was opened last.
    opened: Mutex<Option<FileId>>,
}

/// The device and the number of a file, which another file at the same path does not have.
type FileId = (u64, u64);

#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    let file = path.metadata().ok()?;
    Some((file.dev(), file.ino()))
}

/// On Windows, nobody can remove a file that SQLite has open.
#[cfg(not(unix))]
fn file_id(_: &Path) -> Option<FileId> {
    None
}

/// The right to use one connection.
struct Place<'a> {
    _place: SemaphorePermit<'a>,
    _turn: Option<SemaphorePermit<'a>>,
    _behind: Option<SemaphorePermit<'a>>,
}

/// A connection for one script. When dropped, it is closed at once, without waiting for the server.
struct Taken<'a, D: Database> {
    open: Open<D>,
    _place: Place<'a>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// When the script was sent.
    pub(super) sent_at: Instant,
}

impl DatabaseFile {
    pub(super) fn new(path: PathBuf, tables: String) -> Self {
        Self {
            path,
            tables,
            opened: Mutex::default(),
        }
    }
}

impl<D: Database> Taken<'_, D> {
    async fn does(&mut self, work: Work<'_>) -> Result<Vec<Row>, sqlx::Error> {
        let Open {
            connection,
            is_prepared,
            ..
        } = &mut self.open;
        match work {
            Work::Script(script, columns) => D::run(connection, script, columns).await,
            Work::Quick(what, statement, args) => {
                let is_prepared = &mut is_prepared[what as usize];
                D::quick(connection, what, statement, args, is_prepared).await
            }
        }
    }
}

impl<D: Database> Connections<D> {
    pub(super) fn new(
        config: &SqlConfig<D>,
        endpoint: Endpoint,
        file: Option<DatabaseFile>,
    ) -> Self {
        let most = usize::try_from(config.max_connections).unwrap_or(usize::MAX);
        let most = most.min(Semaphore::MAX_PERMITS);
        let idle = config.pool.get_idle_timeout().unwrap_or(IDLE).min(IDLE);
        Self {
            opener: config.opener(endpoint.request_timeout),
            file,
            endpoint,
            idle: Mutex::new(Vec::new()),
            came_back: Notify::new(),
            places: Semaphore::new(most),
            turns: Semaphore::new(most.saturating_sub(1).max(1)),
            behind: Semaphore::new((most / 2).saturating_sub(1).max(1)),
            idle_limit: (!D::IS_FILE).then_some(idle),
            age_limit: config.pool.get_max_lifetime(),
            rests: AtomicBool::new(false),
        }
    }

    /// Runs a script, or a statement.
    ///
    /// Must not be dropped before it ends: on a file, what has begun would go on.
    pub(super) async fn run(
        &self,
        work: Work<'_>,
        priority: Priority,
        deadline: Instant,
    ) -> Result<Answer, Failed> {
        let mut taken = self.take(priority, deadline).await?;
        let sent_at = Instant::now();
        let run = taken.does(work);
        let answer = if D::IS_FILE {
            // A script that is given up in the middle would leave its transaction open.
            Some(run.await)
        } else {
            tokio::time::timeout_at(deadline.into(), run).await.ok()
        };
        match answer {
            Some(Ok(rows)) => {
                self.give_back(taken).await;
                Ok(Answer { rows, sent_at })
            }
            Some(Err(error)) => {
                let is_told = matches!(error, sqlx::Error::Database(_));
                let failed = self.endpoint.failed::<D>(error, sent_at);
                let is_quick = matches!(work, Work::Quick(..));
                let is_usable = is_told && !failed.retry.needs_another_connection();
                if is_quick && is_usable {
                    // A statement that fails leaves no transaction open.
                    self.give_back(taken).await;
                } else if is_usable {
                    self.give_back_clear(taken, deadline).await;
                } else {
                    // What has ended this connection has usually ended the others too.
                    drop(taken);
                    self.drop_idle();
                }
                Err(failed)
            }
            // The connection is closed, since a late answer would be taken for that of the next
            // script.
            None => Err(Failed::new(RetryPolicy::Reconnect, Cause::Silence, sent_at)),
        }
    }

    /// Takes back a connection whose script failed, and may have left its transaction open.
    async fn give_back_clear(&self, mut taken: Taken<'_, D>, deadline: Instant) {
        let rollback = D::run(&mut taken.open.connection, "ROLLBACK", 0);
        let rolled_back = tokio::time::timeout_at(deadline.into(), rollback).await;
        // If the database answers with an error, there was no open transaction.
        if let Ok(Ok(_) | Err(sqlx::Error::Database(_))) = rolled_back {
            self.give_back(taken).await;
        }
    }

    /// Takes a connection for one script.
    async fn take(&self, priority: Priority, deadline: Instant) -> Result<Taken<'_, D>, Failed> {
        // `timeout_at` would still poll once, which could send a script.
        if deadline <= Instant::now() {
            return Err(self.endpoint.not_reached::<D>());
        }
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
        let closed = |_| self.endpoint.not_opened::<D>(sqlx::Error::PoolClosed);
        let behind = match priority {
            Priority::Behind => Some(self.behind.acquire().await.map_err(closed)?),
            Priority::InTurn | Priority::Urgent => None,
        };
        let turn = match priority {
            Priority::InTurn | Priority::Behind => {
                Some(self.turns.acquire().await.map_err(closed)?)
            }
            Priority::Urgent => None,
        };
        Ok(Place {
            _place: self.places.acquire().await.map_err(closed)?,
            _turn: turn,
            _behind: behind,
        })
    }

    async fn open(&self) -> Result<Open<D>, Failed> {
        // If it is replaced right after this, the next script opens the new one.
        let of_file = self.file_now();
        let opened = self.opener.acquire().await;
        let opened = opened.map_err(|error| match error {
            sqlx::Error::PoolTimedOut => self.endpoint.not_reached::<D>(),
            error => self.endpoint.not_opened::<D>(error),
        })?;
        let mut connection = opened.detach();
        if let Some(file) = &self.file {
            let before = *file.opened.lock();
            if before.is_some() && before != of_file {
                let sent_at = Instant::now();
                let made = D::run(&mut connection, &file.tables, 0).await;
                made.map_err(|error| self.endpoint.failed::<D>(error, sent_at))?;
            }
            *file.opened.lock() = self.file_now();
        }
        let now = Instant::now();
        Ok(Open {
            connection,
            of_file,
            opened_at: now,
            answered_at: now,
            is_prepared: [false; SingleStatement::ALL.len()],
        })
    }

    fn file_now(&self) -> Option<FileId> {
        self.file.as_ref().and_then(|file| file_id(&file.path))
    }

    async fn if_alive(&self, mut open: Open<D>) -> Result<Open<D>, Failed> {
        if open.of_file != self.file_now() {
            // SQLite would go on with a file that was removed, while other processes lock in the
            // one that took its place (<https://www.sqlite.org/howtocorrupt.html>, 4.1).
            say_goodbye(open).await;
            return self.open().await;
        }
        if D::IS_FILE || open.answered_at.elapsed() < QUIET {
            return Ok(open);
        }
        let limit = SIGN_OF_LIFE.min(self.endpoint.request_timeout / 4);
        let sign = tokio::time::timeout(limit, open.connection.ping()).await;
        if matches!(sign, Ok(Ok(()))) {
            open.answered_at = Instant::now();
            return Ok(open);
        }
        // The other idle connections have been silent for longer.
        self.drop_idle();
        Err(self.endpoint.not_reached::<D>())
    }

    /// Takes back a connection that has answered.
    async fn give_back(&self, taken: Taken<'_, D>) {
        let Taken { mut open, _place } = taken;
        open.answered_at = Instant::now();
        let age = open.answered_at - open.opened_at;
        let is_worn = self.age_limit.is_some_and(|limit| age > limit);
        let rests = D::IS_FILE && self.rests();
        if is_worn || rests || self.is_closed() {
            say_goodbye(open).await;
            return;
        }
        let mut idle = self.idle.lock();
        if idle.is_empty() {
            self.came_back.notify_one();
        }
        idle.push(open);
    }

    /// Closes connections that have been idle for too long. Runs until it is dropped.
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

    /// Whether nobody is expected to need a connection.
    pub(super) fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    pub(super) fn rest(&self, rests: bool) {
        self.rests.store(rests, Ordering::Relaxed);
    }

    /// Closes the idle connections at once, without telling the server.
    pub(super) fn drop_idle(&self) {
        self.idle.lock().clear();
    }

    /// Closes the idle connections.
    pub(super) async fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        for open in idle {
            say_goodbye(open).await;
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.places.is_closed()
    }

    /// Gives out no more connections. Those in use are closed when they come back.
    pub(super) fn close(&self) {
        self.behind.close();
        self.turns.close();
        self.places.close();
    }
}

async fn say_goodbye<D: Database>(open: Open<D>) {
    let _ = tokio::time::timeout(GOODBYE, open.connection.close()).await;
}
