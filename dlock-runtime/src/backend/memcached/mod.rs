//! The `memcached://` store: one memcached server.
//!
//! - A lock is an item whose value is its owner. It is taken by `add`, extended
//!   and deleted by compare-and-swap, and expires by the server's clock.
//! - Nobody is told when it comes free: who waits looks now and then, once for
//!   all waiters of a process and key.
//! - A cache may forget: an item that is thrown out to make room, and all of
//!   them at a restart. There is no order, there are no readers and no fencing
//!   tokens.
//!
//! What each part does is said at the top of its file; `names.rs` lists the
//! items.

mod acquire;
mod call;
mod connection;
mod core;
mod errors;
mod expiry;
mod give_back;
mod hub;
mod inspect;
mod known;
mod lanes;
mod lease;
mod names;
mod settings;
mod turns;
mod watch;

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use self::core::Core;
use self::settings::Settings;
use super::{
    Backend, BackendError, BackendErrorKind, Capabilities, Grant, LockInfo, Protocol, Released,
    Renewed, Request, Servers,
};
use crate::limits;

/// Locks on one memcached server, 1.6.18 or later.
///
/// It forgets locks when it restarts or runs out of memory, and gives no
/// fencing tokens that would show it. For work that may rarely be done twice.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::memcached::Memcached;
///
/// let store = Memcached::from_url("memcached://127.0.0.1:11211")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
pub struct Memcached {
    settings: Settings,
    core: OnceLock<Core>,
    stopped: AtomicBool,
}

impl Memcached {
    /// The server at `memcached://host[:port]`, port 11211 if it says none. It
    /// is reached by IPv4. Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or names several servers: locks are on one.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        Ok(Self::new(Settings::from_url(url)?))
    }

    /// How long an operation waits for the server in all, 5 seconds by default:
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
        core.ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the memcached backend is not running; use it between its start and its stop",
            )
        })
    }
}

/// A copy is another backend with the same settings, not yet connected.
impl Clone for Memcached {
    fn clone(&self) -> Self {
        Self::new(self.settings.clone())
    }
}

impl fmt::Debug for Memcached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memcached")
            .field("server", &self.settings.address())
            .field("request_timeout", &self.settings.request_timeout)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Memcached {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Below it, what whole seconds add would be more than the lease.
            min_ttl: Duration::from_secs(3),
            max_ttl: expiry::LONGEST,
            ttl_step: Duration::from_secs(1),
            max_key_bytes: names::MAX_KEY_BYTES,
            ..Capabilities::new("memcached")
        }
    }

    fn request_timeout(&self) -> Option<Duration> {
        Some(self.settings.request_timeout)
    }

    fn servers(&self) -> Option<Servers> {
        let host = self.settings.address();
        Some(Servers::new(Protocol::Memcached, [host]))
    }

    async fn start(&self) -> Result<(), BackendError> {
        let twice = || {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the memcached backend was started twice",
            )
        };
        if self.core.get().is_some() {
            return Err(twice());
        }
        limits::REQUEST_TIMEOUT.check_in_backend(self.settings.request_timeout)?;
        let core = Core::start(self.settings.clone()).await?;
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
            core.hub.settle().await;
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
