//! The `redis://` store: one Redis server.
//!
//! - A free lock is taken by `SET NX PX`, and everything else is done by one
//!   Lua script for each operation, by the server's clock.
//! - Who does not get it waits in a list at the server. The release hands the
//!   lock to the next who is alive, within the script, so that it is never free
//!   while somebody waits and nobody overtakes; and sends a message on the one
//!   channel of that waiter's process.
//! - A message is a hint. The waiter that it wakes asks the server, and once a
//!   second the process looks at all the locks it waits for, so a lost message
//!   costs a second. Only for that second, when a holder has died or the next in
//!   the queue does not listen, may a newcomer overtake.
//! - Fencing tokens come from one counter for all locks, which is lifted to the
//!   server's clock (in microseconds) on every new connection: they rise even
//!   if Redis loses its data, unless its clock goes back or it has granted more
//!   than 15,000 locks a second on average.
//!
//! What each part does is said at the top of its file; `names.rs` lists the keys, and
//! `values.rs` what they hold.

mod acquire;
mod call;
mod cluster;
mod commands;
mod confirm;
mod connection;
mod connections;
mod connector;
mod core;
mod disown;
mod durability;
mod errors;
mod give_back;
mod holders;
mod hub;
mod inspect;
mod lease;
mod line;
mod locate;
mod lost;
mod names;
mod outbox;
mod process;
mod redlock;
mod renewal;
mod scripts;
mod sentinel;
mod server_connections;
mod settings;
mod shared;
mod socket;
#[cfg(feature = "tls")]
mod tls;
mod values;
mod waiters;
mod watch;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

pub use self::cluster::Cluster;
use self::core::{Core, Target};
pub use self::redlock::Redlock;
use self::sentinel::Sentinels;
use self::settings::Settings;
use super::{
    Backend, BackendError, BackendErrorKind, Capabilities, Grant, LockInfo, Released, Renewed,
    Request, Servers, TokenTier,
};
use crate::limits;

/// Locks on one Redis server, 6.2 or later, or on the master that sentinels name.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::redis::Redis;
///
/// let store = Redis::from_url("redis://:secret@127.0.0.1:6379/0")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
pub struct Redis {
    settings: Settings,
    /// Who says where the server is, if not the settings.
    sentinels: Option<Arc<Sentinels>>,
    core: OnceLock<Core>,
    stopped: AtomicBool,
}

impl Redis {
    /// The server at `redis://[user:password@]host[:port][/database]`, or at
    /// `rediss://…` over an encrypted connection (cargo feature `tls`).
    ///
    /// Or the master that the sentinels name at
    /// `redis+sentinel://[user:password@]host[:port],host,…/master[/database]`,
    /// with `?replicas=N` for locks that count only when N replicas have them
    /// too, and `?sentinel_username=…&sentinel_password=…` for sentinels that
    /// ask for a password.
    ///
    /// A user and password are percent-encoded. `rediss://…?ca=<path>` trusts
    /// the authority whose certificate is in that file, in place of the
    /// system's. Nothing is connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood. The message never holds a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        match url.split_once(':') {
            Some(("redis+sentinel" | "rediss+sentinel", _)) => {
                let (settings, sentinels) = sentinel::read(url)?;
                Ok(Self::new(settings, Some(sentinels)))
            }
            _ => Ok(Self::new(Settings::of_server(url)?, None)),
        }
    }

    /// How long an operation waits for the server in all, 5 seconds by default:
    /// an outage is reported after this time.
    /// From a millisecond to 24 hours, or it is refused at the start.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.settings.request_timeout = timeout;
        self
    }

    fn new(settings: Settings, sentinels: Option<Arc<Sentinels>>) -> Self {
        Self {
            settings,
            sentinels,
            core: OnceLock::new(),
            stopped: AtomicBool::new(false),
        }
    }

    fn target(&self) -> Result<Target, BackendError> {
        match &self.sentinels {
            Some(sentinels) => Ok(Target::Master(Arc::clone(sentinels))),
            None => Target::fixed(&self.settings),
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
                "the Redis backend is not running; use it between its start and its stop",
            )
        })
    }
}

/// A copy is another backend with the same settings, not yet connected.
impl Clone for Redis {
    fn clone(&self) -> Self {
        Self::new(self.settings.clone(), self.sentinels.clone())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sentinels {
            None => self.settings.fmt(f),
            Some(sentinels) => f
                .debug_struct("RedisSentinel")
                .field("sentinels", sentinels)
                .field("master", &self.settings)
                .finish(),
        }
    }
}

#[async_trait]
impl Backend for Redis {
    fn capabilities(&self) -> Capabilities {
        let tokens = self
            .core
            .get()
            .map_or(TokenTier::BestEffort, |core| core.tokens());
        let strict_with = match self.sentinels {
            None => durability::STRICT_WITH,
            // A failover may take a replica that lacks the last of them.
            Some(_) => "",
        };
        Capabilities {
            fair: true,
            tokens,
            strict_with,
            read_write: true,
            in_order: true,
            ..Capabilities::new("redis")
        }
    }

    fn request_timeout(&self) -> Option<Duration> {
        Some(self.settings.request_timeout)
    }

    fn servers(&self) -> Option<Servers> {
        let mut servers = settings::servers([&self.settings]);
        if let Some(sentinels) = &self.sentinels {
            let (name, hosts) = sentinels.servers();
            (servers.name, servers.hosts) = (Some(name), hosts);
        }
        Some(servers)
    }

    async fn start(&self) -> Result<(), BackendError> {
        let twice = || {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the Redis backend was started twice",
            )
        };
        if self.core.get().is_some() {
            return Err(twice());
        }
        limits::REQUEST_TIMEOUT.check_in_backend(self.settings.request_timeout)?;
        let core = Core::start(self.settings.clone(), self.target()?).await?;
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
