//! The `zookeeper://` store: a ZooKeeper ensemble.
//!
//! - Each request makes an ephemeral sequential node in the lock's folder, by the
//!   names that Apache Curator gives them (`names`). The first in the queue
//!   holds the lock, and each of the others watches the one before it (`queue`,
//!   `acquire`).
//! - All of a process goes over one session (`session`). A lease is counted
//!   from the last write that a majority has confirmed, and ends with its ttl
//!   although its node stays for as long as the session does: the node is then
//!   deleted from here (`nodes`, `give_back`).
//! - A session that ends takes all of its locks along: their holders are told,
//!   and another is opened (`core`).
//! - Fencing tokens are the numbers of the transactions that made the nodes.
//!
//! `docs/design/zookeeper.md` says why.

mod acquire;
mod core;
mod errors;
mod give_back;
mod inspect;
mod lease;
mod look;
mod names;
mod nodes;
mod queue;
mod session;
mod settings;
mod start;
#[cfg(feature = "tls")]
mod tls;
mod used_up;
mod waiters;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use self::core::Core;
use self::settings::Settings;
use super::{
    Backend, BackendError, BackendErrorKind, Capabilities, Grant, HolderInfo, LockInfo, Owner,
    Protocol, Released, Renewed, Request, Servers, TokenTier,
};
use crate::limits;

/// Locks on a ZooKeeper ensemble, 3.6 or later.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::zookeeper::ZooKeeper;
///
/// let store = ZooKeeper::from_url("zookeeper://10.0.0.1,10.0.0.2,10.0.0.3/locks")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
pub struct ZooKeeper {
    settings: Settings,
    core: OnceLock<Arc<Core>>,
    stopped: AtomicBool,
}

impl ZooKeeper {
    /// The servers at
    /// `zookeeper://[user:password@]host[:port],…[/folder][?option=value&…]`, or at
    /// `zookeeper+tls://…` over encrypted connections (cargo feature `tls`).
    ///
    /// The locks are in the folder, `/dlock` if none is named. Options:
    /// `session_timeout=20s`, `recipe=mutex` or `recipe=read-write` (whose names
    /// the nodes have, those of Curator's `InterProcessMutex` or
    /// `InterProcessReadWriteLock`), `auth=sasl` or `auth=digest`, `acl=anyone` or
    /// `acl=creator`; and for TLS the paths of PEM files, `ca=`, `cert=` and
    /// `key=`. A user and password are percent-encoded. Nothing is connected
    /// before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or a file that it names cannot be used. The
    /// message never holds a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        Ok(Self::new(Settings::from_url(url)?))
    }

    /// How long an operation waits for the servers in all, 5 seconds by default:
    /// an outage is reported after this time.
    /// From a millisecond to 24 hours, or it is refused at the start.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = timeout;
        self
    }

    fn new(settings: Settings) -> Self {
        Self {
            settings,
            core: OnceLock::new(),
            stopped: AtomicBool::new(false),
        }
    }

    fn core(&self) -> Result<&Core, BackendError> {
        let core = self
            .core
            .get()
            .filter(|_| !self.stopped.load(Ordering::Acquire));
        core.map(|core| &**core).ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the ZooKeeper backend is not running; use it between its start and its stop",
            )
        })
    }
}

/// A copy is another backend with the same settings, not yet connected.
impl Clone for ZooKeeper {
    fn clone(&self) -> Self {
        Self::new(self.settings.clone())
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.settings, f)
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::Strict,
            read_write: true,
            // Every grant and renewal is a write on a majority of the servers.
            min_ttl: Duration::from_millis(100),
            ..Capabilities::new("zookeeper")
        }
    }

    fn request_timeout(&self) -> Option<Duration> {
        Some(self.settings.request_timeout)
    }

    fn servers(&self) -> Option<Servers> {
        let hosts = self.settings.hosts.iter().cloned();
        let servers = Servers::new(Protocol::ZooKeeper, hosts);
        Some(servers.encrypted(self.settings.encrypted))
    }

    async fn start(&self) -> Result<(), BackendError> {
        let twice = || {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the ZooKeeper backend was started twice",
            )
        };
        if self.core.get().is_some() {
            return Err(twice());
        }
        limits::REQUEST_TIMEOUT.check_in_backend(self.settings.request_timeout)?;
        let core = start::start(self.settings.clone()).await?;
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
            core.nodes.settle().await;
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

    /// They are shown by the names of their nodes.
    fn is_owner(&self, holder: &HolderInfo, owner: Owner) -> bool {
        holder.owner.starts_with(&names::own(owner))
    }

    async fn next_losses(&self) -> Vec<Owner> {
        match self.core() {
            Ok(core) => core.losses.next().await,
            Err(_) => std::future::pending().await,
        }
    }

    fn has_ended(&self, owner: Owner) -> bool {
        self.core().is_ok_and(|core| !core.nodes.holds(owner))
    }
}
