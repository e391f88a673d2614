//! The `etcd://` store: a cluster with consensus.
//!
//! - Each request writes a key under the lock's name that no other request has
//!   meanwhile, attached to a lease. Whoever's key has the lowest create-revision
//!   holds the lock; a reader holds it if no writer's is lower. That is the recipe
//!   of `etcdctl lock`, so the two exclude each other.
//! - Who does not hold it watches the one key that is directly before its own. A
//!   release wakes one waiter, however many there are.
//! - The lease is shared by all requests of the process with the same ttl, and
//!   kept alive on the manager's thread. When it ends, all its locks end.
//! - Fencing tokens are create-revisions: every write to the cluster raises them,
//!   and consensus keeps them.
//!
//! What each part does is said at the top of its file; `names.rs` lists the keys.

mod acquire;
mod core;
mod errors;
mod held;
mod inspect;
mod lease;
mod leases;
mod members;
mod names;
mod patience;
mod places;
mod service;
mod settings;
mod standing;
mod watches;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;

use self::core::Core;
use self::settings::{Recipe, Settings};
use super::{
    Backend, BackendError, BackendErrorKind, Capabilities, Grant, HolderInfo, LockInfo, Owner,
    Protocol, Released, Renewed, Request, Servers, TokenTier,
};
use crate::limits;

/// Locks in an etcd cluster, 3.4 or later.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::backend::etcd::Etcd;
///
/// let store = Etcd::from_url("etcd://alice:secret@10.0.0.1,10.0.0.2,10.0.0.3")?
///     .request_timeout(Duration::from_secs(2));
/// # Ok::<(), dlock::backend::BackendError>(())
/// ```
pub struct Etcd {
    settings: Settings,
    core: OnceLock<Arc<Core>>,
    stopped: AtomicBool,
}

impl Etcd {
    /// The cluster with members at
    /// `etcd://[user:password@]host[:port],host,…[/prefix]`, or at `etcds://…`
    /// over encrypted connections (cargo feature `tls`). One member is enough to
    /// name; the others are asked when it does not answer.
    ///
    /// A lock is at `<prefix>/<key>/`, the prefix being `dlock` if the URL names
    /// none. A user and password are percent-encoded.
    ///
    /// `?recipe=lock-service` has the server's own Lock call do the waiting;
    /// there are no readers then. `etcds://…?ca=<path>` trusts the authority whose
    /// certificate is in that file, in place of the system's, and
    /// `cert=<path>&key=<path>` is what this client shows of itself. Nothing is
    /// connected before the first use.
    ///
    /// # Errors
    ///
    /// The URL is not understood, or a file in it cannot be read. The message
    /// never holds a password.
    pub fn from_url(url: &str) -> Result<Self, BackendError> {
        Ok(Self::new(Settings::from_url(url)?))
    }

    /// How long an operation waits for the cluster in all, 5 seconds by default:
    /// an outage is reported after this time. An election of etcd takes one to
    /// two seconds, unless the cluster is set up otherwise.
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

    fn core(&self) -> Result<&Arc<Core>, BackendError> {
        let core = self.core.get();
        core.filter(|_| !self.stopped.load(Ordering::Acquire))
            .ok_or_else(errors::not_running)
    }
}

/// A copy is another backend with the same settings, not yet connected.
impl Clone for Etcd {
    fn clone(&self) -> Self {
        Self::new(self.settings.clone())
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.settings, f)
    }
}

#[async_trait]
impl Backend for Etcd {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fair: true,
            tokens: TokenTier::Strict,
            read_write: self.settings.recipe == Recipe::Queue,
            ..Capabilities::new("etcd")
        }
    }

    fn servers(&self) -> Option<Servers> {
        let Settings { hosts, .. } = &self.settings;
        let servers = Servers::new(Protocol::Etcd, hosts.iter().cloned());
        Some(servers.encrypted(self.settings.encrypted()))
    }

    async fn start(&self) -> Result<(), BackendError> {
        let twice = || {
            BackendError::new(
                BackendErrorKind::Unsupported,
                "the etcd backend was started twice",
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
            core.returns.wait_idle().await;
        }
    }

    async fn try_acquire(&self, request: &Request) -> Result<Option<Grant>, BackendError> {
        let request = request.clone();
        let granted = self
            .core()?
            .ask(|core, _| acquire::try_acquire(core, request))
            .await?;
        Ok(granted.map(|granted| granted.grant()))
    }

    async fn acquire(&self, request: &Request) -> Result<Grant, BackendError> {
        let (request, recipe) = (request.clone(), self.settings.recipe);
        let granted = self
            .core()?
            .ask(|core, caller| async move {
                match recipe {
                    Recipe::Queue => acquire::acquire(core, request, caller).await,
                    Recipe::LockService => service::acquire(core, request, caller).await,
                }
            })
            .await?;
        // There is a grant for a caller who has stayed to hear of it.
        granted
            .map(|granted| granted.grant())
            .ok_or_else(errors::not_running)
    }

    async fn renew(&self, requests: &[Request]) -> Vec<Result<Renewed, BackendError>> {
        let requests = requests.to_vec();
        let count = requests.len();
        let renewed = match self.core() {
            Ok(core) => {
                core.run(|core| async move { Ok(lease::renew(core, requests).await) })
                    .await
            }
            Err(error) => Err(error),
        };
        renewed.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn release(&self, request: &Request) -> Result<Released, BackendError> {
        let request = request.clone();
        self.core()?.run(|core| lease::release(core, request)).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<LockInfo>, BackendError> {
        let key = key.to_owned();
        self.core()?.run(|core| inspect::inspect(core, key)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, BackendError> {
        let prefix = prefix.to_owned();
        self.core()?.run(|core| inspect::list(core, prefix)).await
    }

    /// What the server's Lock call makes has no value, and is shown by its name.
    fn is_owner(&self, holder: &HolderInfo, owner: Owner) -> bool {
        holder.shows(owner)
            || self.core().is_ok_and(|core| {
                let place = core.held.get(owner);
                place.is_some_and(|place| place.name.is_of(&holder.owner))
            })
    }

    async fn next_losses(&self) -> Vec<Owner> {
        match self.core() {
            Ok(core) => core.held.next_losses().await,
            Err(_) => std::future::pending().await,
        }
    }

    fn has_ended(&self, owner: Owner) -> bool {
        self.core().is_ok_and(|core| !core.held.holds(owner))
    }
}
