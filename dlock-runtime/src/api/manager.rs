//! The manager: one connected store, and everything that is held in it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::api::config::Config;
use crate::api::request::LockRequest;
use crate::api::scope::ManagerScope;
use crate::backend::{BackendError, Capabilities, LockInfo, Owner};
use crate::clock::Clock;
use crate::error::LockError;
use crate::executor::Executor;
use crate::gate::Gate;
use crate::key::{LockKey, Shown, namespaced};
use crate::lease::Leases;
use crate::limits;
use crate::lock_order::LockOrder;
use crate::observe::{self, Labels};
use crate::options::{Options, Patience};
use crate::reach::Reach;

/// Tells managers apart: what one holds is not re-entered through another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ManagerId(u64);

/// A connection to a store, and the locks that are held through it.
///
/// `dlock::init` installs one for the whole process. Connect others for a
/// second store, or for tests that run side by side:
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// use dlock::{Config, LockManager};
///
/// let manager = LockManager::connect(Config::default()).await?;
/// let guard = manager.lock("stock:42").try_acquire().await?;
/// assert!(manager.lock("stock:42").try_acquire().await.is_err());
/// assert!(manager.inspect("stock:42").await?.is_some());
/// guard.release().await
/// # }
/// ```
///
/// Clones are handles to the same manager. It ends with its last clone, guard
/// and running body.
#[derive(Clone)]
pub struct LockManager {
    inner: Arc<Inner>,
}

struct Inner {
    id: ManagerId,
    capabilities: Capabilities,
    namespace: Arc<str>,
    ttl: Duration,
    patience: Patience,
    /// All of its locks are.
    fenced: bool,
    leases: Arc<Leases>,
    gate: Arc<Gate>,
    /// Off if it is not there.
    lock_order: Option<LockOrder>,
}

impl LockManager {
    /// Connects to the store of `config` and checks that it answers and can do
    /// what the configuration asks.
    ///
    /// # Errors
    ///
    /// [`LockError::Config`] names the setting that is wrong;
    /// [`LockError::Unavailable`] if the store did not answer within the
    /// request timeout, or at once if its servers refuse connections;
    /// [`LockError::Unsupported`] outside a tokio runtime or in one without timers,
    /// or if `config` asks for strict tokens and the store's are not.
    pub async fn connect(config: Config) -> Result<Self, LockError> {
        static IDS: AtomicU64 = AtomicU64::new(0);

        crate::executor::check_runtime(|| "connecting".to_owned())?;
        let settings = config.into_settings()?;
        let backend = settings.backend;
        Owner::draw().map_err(|error| {
            let name = backend.capabilities().name;
            LockError::of_store("connecting".to_owned(), name, error)
        })?;
        observe::describe();
        // Asked before the start for where to start it; what the store can
        // promise may show only when it answers.
        let local = backend.capabilities().local;
        let name = backend.capabilities().name;
        let executor = if local {
            Executor::ambient()?
        } else {
            Executor::thread(name)?
        };
        let reach = Reach::new(&backend, executor.runtime());
        let started = {
            let (backend, reach) = (Arc::clone(&backend), reach.clone());
            executor
                .run(async move { reach.while_starting(backend.start()).await })
                .await
        };
        started
            .unwrap_or_else(|| Err(BackendError::unavailable("its thread has ended")))
            .map_err(|error| LockError::of_store("connecting".to_owned(), name, error))?;
        let capabilities = backend.capabilities();
        // From here on, dropping it stops the backend.
        let leases = Arc::new(Leases::new(backend, executor, reach, capabilities.in_order));
        crate::core::acquire::check_ttl(settings.ttl, &capabilities)?;
        if settings.fenced {
            crate::core::acquire::check_fenced(&capabilities).map_err(|reason| {
                LockError::Unsupported {
                    subject: "connecting".to_owned(),
                    reason,
                }
            })?;
        }
        Ok(Self {
            inner: Arc::new(Inner {
                id: ManagerId(IDS.fetch_add(1, Ordering::Relaxed)),
                capabilities,
                namespace: settings.namespace,
                ttl: settings.ttl,
                patience: settings.patience,
                fenced: settings.fenced,
                lock_order: settings.detect_lock_order.then(LockOrder::default),
                gate: Gate::new(Arc::clone(&leases), settings.handoff),
                leases,
            }),
        })
    }

    /// Asks for a lock in this manager's store.
    #[track_caller]
    pub fn lock(&self, key: impl Into<LockKey>) -> LockRequest {
        LockRequest::new(Some(self.clone()), key.into())
    }

    /// Makes this the manager of all annotated functions and `dlock::lock`
    /// calls inside `future`, instead of the global one. A task that is
    /// spawned inside takes it along with
    /// [`in_lock_scope`](crate::LockScopeExt::in_lock_scope).
    pub fn scope<F: Future>(&self, future: F) -> ManagerScope<F> {
        ManagerScope::new(future, self.clone())
    }

    /// What the store knows of a lock; `None` if nobody holds it.
    ///
    /// # Errors
    ///
    /// [`LockError::InvalidKey`] or [`LockError::Unavailable`].
    pub async fn inspect(&self, key: impl Into<LockKey>) -> Result<Option<LockInfo>, LockError> {
        let key = key.into();
        self.check_key(&key)?;
        let Some(name) = key.single() else {
            return Err(LockError::InvalidKey {
                key: key.to_string(),
                reason: "it names several locks; inspect them one by one".to_owned(),
            });
        };
        let full = namespaced(self.namespace(), name);
        match self.inner.leases.backend().inspect(&full).await {
            Ok(info) => Ok(info.map(|info| self.without_namespace(info))),
            Err(error) => {
                let subject = format!("lock `{}`", Shown(name));
                Err(self.store_failed(subject, error).await)
            }
        }
    }

    /// The held locks of this manager's namespace whose key begins with
    /// `prefix`; all of them for `""`. Meant for people and dashboards: its
    /// cost grows with the number of locks in the store.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`] if the store does not answer;
    /// [`LockError::InvalidKey`] if no key can begin so.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, LockError> {
        limits::check_prefix(
            prefix,
            self.namespace(),
            self.inner.capabilities.max_key_bytes,
        )?;
        let full = namespaced(self.namespace(), &Arc::from(prefix));
        match self.inner.leases.backend().list(&full).await {
            Ok(infos) => Ok(infos
                .into_iter()
                .map(|info| self.without_namespace(info))
                .collect()),
            Err(error) => {
                let subject = format!("listing the locks `{}…`", Shown(prefix));
                Err(self.store_failed(subject, error).await)
            }
        }
    }

    /// What the store can promise. What its tokens are worth may change while it
    /// runs, with the settings of its server.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.leases.backend().capabilities()
    }

    /// The same as it was at the start, without asking: all but the tokens' worth.
    pub(crate) fn lasting_capabilities(&self) -> &Capabilities {
        &self.inner.capabilities
    }

    /// Refuses locks from now on, to those who wait too, and waits until every
    /// release under way has reached the store or its lease has run out; a call
    /// that was dropped while it asked for a lock counts as one. Call it before
    /// `main` returns: a guard that was dropped just before gives its lock back
    /// in the background. A lock that `min_hold` keeps is left to the store to
    /// expire at its time. Bodies that still run are not waited for, and may
    /// re-enter what they hold.
    pub async fn shutdown(&self) {
        self.inner.leases.shutdown().await;
    }

    /// Refuses a key that the store could not keep.
    pub(crate) fn check_key(&self, key: &LockKey) -> Result<(), LockError> {
        limits::check_key(key, self.namespace(), self.inner.capabilities.max_key_bytes)
    }

    pub(crate) fn labels(&self, options: &Options) -> Labels {
        Labels {
            template: options.template,
            store: self.inner.capabilities.name,
            mode: options.mode,
        }
    }

    pub(crate) fn id(&self) -> ManagerId {
        self.inner.id
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.inner.namespace
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.inner.ttl
    }

    pub(crate) fn patience(&self) -> Patience {
        self.inner.patience
    }

    /// Whether all of its locks must have strict tokens.
    pub(crate) fn is_fenced(&self) -> bool {
        self.inner.fenced
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.inner.gate
    }

    pub(crate) fn lock_order(&self) -> Option<&LockOrder> {
        self.inner.lock_order.as_ref()
    }

    pub(crate) fn clock(&self) -> Clock {
        self.inner.leases.executor().clock()
    }

    pub(crate) fn now(&self) -> Instant {
        self.inner.leases.now()
    }

    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.inner.leases
    }

    /// The same, behind a look whether the store is there if it has not answered.
    /// Boxed: not every call has room for it.
    pub(crate) async fn store_failed(&self, subject: String, error: BackendError) -> LockError {
        let error = Box::pin(self.inner.leases.reach().explained(error)).await;
        self.store_error(subject, error)
    }

    /// What the store answered, as this manager's callers are told.
    pub(crate) fn store_error(&self, subject: String, error: BackendError) -> LockError {
        LockError::of_store(subject, self.inner.capabilities.name, error)
    }

    fn without_namespace(&self, mut info: LockInfo) -> LockInfo {
        let namespace = self.namespace();
        if !namespace.is_empty() && info.key.len() > namespace.len() {
            info.key.drain(..=namespace.len());
        }
        info
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.inner.capabilities.name)
            .field(
                "namespace",
                &format_args!("{}", Shown(&self.inner.namespace)),
            )
            .field("ttl", &self.inner.ttl)
            .finish_non_exhaustive()
    }
}
