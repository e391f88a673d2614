//! Databases: one protocol over three tables, for each database that `sqlx`
//! speaks to.
//!
//! - A lock is a row, found by its name. Each operation is one script of SQL
//!   that the database runs as one transaction, under the lock of that row.
//! - Who does not get it waits in a queue table. Those who come later see that
//!   somebody waits in the row itself, so that nobody overtakes.
//! - Leases end by the database's clock, and the owner is compared in every
//!   statement.
//! - The fencing token is a counter in the row. Before rows are removed, a floor
//!   for those that come later is raised above them.
//!
//! What each part does is said at the top of its file; `statements/` is the
//! protocol itself.

mod acquire;
mod core;
mod driver;
mod durability;
mod inspect;
mod lease;
#[cfg(feature = "mysql")]
pub mod mysql;
mod opened;
mod pace;
mod pooled;
#[cfg(feature = "postgres")]
pub mod postgres;
mod script;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod start;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod url;
mod waiters;
mod watch;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use self::core::Core;
use self::opened::Opened;
use super::{
    Backend, BackendError, BackendErrorKind, Capabilities, Grant, LockInfo, Owner, Released,
    Renewed, Request, Servers, TokenTier,
};
use crate::limits;

/// How long an operation waits for the database in all.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A kind of database, and how to reach one.
#[async_trait]
pub trait Database: Clone + fmt::Debug + Send + Sync + 'static {
    /// What it is called in messages.
    const NAME: &'static str;

    /// What to set in it to make the tokens strict, for messages.
    #[doc(hidden)]
    const STRICT_WITH: &'static str;

    /// Where it is, if it is not a file.
    #[doc(hidden)]
    fn servers(&self) -> Option<Servers> {
        None
    }

    /// Connects and checks that the tables are there.
    #[doc(hidden)]
    async fn open(&self, process: &str, request_timeout: Duration) -> Result<Opened, BackendError>;
}

/// Locks in the tables of a database.
pub struct Sql<D> {
    database: D,
    request_timeout: Duration,
    core: OnceLock<Arc<Core>>,
    stopped: AtomicBool,
}

impl<D: Database> Sql<D> {
    /// How long an operation waits for the database in all, 5 seconds by
    /// default: an outage is reported after this time.
    /// From a millisecond to 24 hours, or it is refused at the start.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    fn new(database: D) -> Self {
        Self::with_timeout(database, DEFAULT_REQUEST_TIMEOUT)
    }

    fn with_timeout(database: D, request_timeout: Duration) -> Self {
        Self {
            database,
            request_timeout,
            core: OnceLock::new(),
            stopped: AtomicBool::new(false),
        }
    }

    fn core(&self) -> Result<&Arc<Core>, BackendError> {
        let core = self
            .core
            .get()
            .filter(|_| !self.stopped.load(Ordering::Acquire));
        core.ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unsupported,
                format!(
                    "the {} backend is not running; use it between its start and its stop",
                    D::NAME
                ),
            )
        })
    }
}

/// A copy is another backend with the same settings, not yet connected.
impl<D: Database> Clone for Sql<D> {
    fn clone(&self) -> Self {
        Self::with_timeout(self.database.clone(), self.request_timeout)
    }
}

impl<D: Database> fmt::Debug for Sql<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.database, f)
    }
}

#[async_trait]
impl<D: Database> Backend for Sql<D> {
    fn capabilities(&self) -> Capabilities {
        let core = self.core.get();
        Capabilities {
            fair: true,
            tokens: core.map_or(TokenTier::BestEffort, Core::tokens),
            strict_with: D::STRICT_WITH,
            read_write: true,
            ..Capabilities::new(D::NAME)
        }
    }

    fn servers(&self) -> Option<Servers> {
        self.database.servers()
    }

    async fn start(&self) -> Result<(), BackendError> {
        let twice = || {
            BackendError::new(
                BackendErrorKind::Unsupported,
                format!("the {} backend was started twice", D::NAME),
            )
        };
        if self.core.get().is_some() {
            return Err(twice());
        }
        limits::REQUEST_TIMEOUT.check_in_backend(self.request_timeout)?;
        // This backend among all that share the database.
        let process = Owner::unique().to_string();
        let opened = self.database.open(&process, self.request_timeout).await?;
        let core = start::start(opened, process, self.request_timeout)?;
        self.core.set(core).map_err(|_| twice())
    }

    async fn stop(&self) {
        if let Ok(core) = self.core() {
            self.stopped.store(true, Ordering::Release);
            core.stop().await;
        }
    }

    async fn settle(&self) {
        if let Ok(core) = self.core() {
            core.settle().await;
        }
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        self.core()?.try_acquire(request).await
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        self.core()?.acquire(request).await
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        match self.core() {
            Ok(core) => core.renew(requests).await,
            Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        self.core()?.release(request).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        self.core()?.inspect(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        self.core()?.list(prefix).await
    }
}
