//! The manager: one connected store, and everything that is held in it. `dlock::init` installs one
//! for the whole process.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use super::config::Config;
use super::request::LockRequest;
use super::scope::InLockScope;
use crate::backend::{BackendError, Capabilities, Finding, Listed, LockInfo};
use crate::core::inner::Inner;
use crate::core::requirements::{check_key, check_prefix, check_remembers};
use crate::core::scope::INSTALLED;
use crate::error::LockError;
use crate::executor::check_runtime;
use crate::key::{LockKey, Shown, namespaced};

/// A connection to a store, and the locks that are held through it.
///
/// `dlock::init` installs one for the whole process. Connect more for a second store, or for tests
/// that run side by side:
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
/// Clones are handles to the same manager. The manager ends with its last clone, guard and running
/// body.
#[derive(Clone)]
pub struct LockManager {
    inner: Arc<Inner>,
}

impl LockManager {
    /// Connects to the store of `config`, and checks that it answers and supports what the
    /// configuration requires.
    ///
    /// # Errors
    ///
    /// [`LockError::Config`] names the setting that is wrong; [`LockError::Unavailable`] if the
    /// store did not answer within the request timeout, or at once if its servers refuse
    /// connections; [`LockError::Unsupported`] outside a tokio runtime or in one without timers, or
    /// if `config` requires strict tokens and the store's are not, or names a floor for tokens that
    /// the store cannot lift.
    pub async fn connect(config: Config) -> Result<Self, LockError> {
        check_runtime(|| "connecting".to_owned())?;
        let (backend, settings) = config.into_parts()?;
        let inner = Inner::connect(backend, settings).await?;
        Ok(Self::new(Arc::new(inner)))
    }

    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Requests a lock in this manager's store.
    #[track_caller]
    pub fn lock(&self, key: impl Into<LockKey>) -> LockRequest {
        LockRequest::new(Some(Arc::clone(&self.inner)), key.into())
    }

    /// Makes this the manager of all annotated functions and `dlock::lock` calls inside `future`,
    /// instead of the global one. A task that is spawned inside keeps it with
    /// [`in_lock_scope`](crate::LockScopeExt::in_lock_scope).
    pub fn scope<F: Future>(&self, future: F) -> InLockScope<F> {
        InLockScope::of_manager(future, Arc::clone(&self.inner))
    }

    /// Forgets that the work of a key has been done, which [`once`](crate::LockRequest::once)
    /// remembers, so that it is done again. Returns whether there was something to forget. If an
    /// answer was lost and the command was repeated, that is `true`: the first may have done it.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// # use std::time::Duration;
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let guard = manager.lock("report:monday").once(Duration::from_secs(3600)).acquire().await?;
    /// guard.release_done().await?;
    /// assert!(manager.forget("report:monday").await?);
    /// assert!(manager.lock("report:monday").try_acquire().await.is_ok());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`inspect`](Self::inspect), and [`LockError::Unsupported`] from a store that cannot
    /// remember.
    pub async fn forget(&self, key: impl Into<LockKey>) -> Result<bool, LockError> {
        let key = key.into();
        let name = self.single(&key, "forget")?;
        check_remembers(&self.inner.at_start, || format!("lock `{key}`"))?;
        let full = namespaced(&self.inner.settings.namespace, name);
        let forgotten = self.inner.leases.backend.forget(&full);
        self.told(|| lock_named(name), forgotten).await
    }

    /// What the store knows of a lock. `None` if nobody holds it and its work is not remembered as
    /// done.
    ///
    /// # Errors
    ///
    /// [`LockError::InvalidKey`], [`LockError::Unavailable`], or [`LockError::Config`] if a right is
    /// missing.
    pub async fn inspect(&self, key: impl Into<LockKey>) -> Result<Option<LockInfo>, LockError> {
        let key = key.into();
        let name = self.single(&key, "inspect")?;
        let full = namespaced(&self.inner.settings.namespace, name);
        let info = self.inner.leases.backend.inspect(&full);
        let info = self.told(|| lock_named(name), info).await?;
        Ok(info.map(|info| self.without_namespace(info)))
    }

    /// The locks of this manager's namespace whose key begins with `prefix`, or all of them for
    /// `""`, that are held or remembered as done. For people and dashboards: its cost grows with
    /// the number of locks in the store.
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`] if the store does not answer; [`LockError::Config`] if a right is
    /// missing, or a value is not dlock's; [`LockError::InvalidKey`] if no key can begin like this.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, LockError> {
        let full = self.prefix(prefix)?;
        let locks = self.inner.leases.backend.list(&full);
        Ok(self.listed(self.told(|| listing(prefix), locks).await?))
    }

    /// The first `most` locks of [`list`](Self::list), by key, and the number of the others: for
    /// callers that look repeatedly. A store that has to be asked about each lock, or about its
    /// lease, is asked only about the returned ones. The cost of finding them still grows with the
    /// store: in Redis one `SCAN` for a thousand keys, in etcd a request for 5000 of them, in
    /// ZooKeeper one list and a request for every 400 folders in it, in memcached one walk
    /// through its items (three before 1.6.19, if there are more than 200). A database returns all
    /// of them to one query.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let guard = manager.lock(["stock:1", "stock:2", "stock:3"]).acquire().await?;
    /// let listed = manager.list_some("stock:", 2).await?;
    /// assert_eq!((listed.locks.len(), listed.others), (2, 1));
    /// assert_eq!(listed.locks[0].key, "stock:1");
    /// # guard.release().await }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`list`](Self::list).
    pub async fn list_some(&self, prefix: &str, most: usize) -> Result<Listed, LockError> {
        let full = self.prefix(prefix)?;
        let listed = self.inner.leases.backend.list_some(&full, most);
        let mut listed = self.told(|| listing(prefix), listed).await?;
        listed.locks = self.listed(listed.locks);
        Ok(listed)
    }

    fn prefix(&self, prefix: &str) -> Result<Arc<str>, LockError> {
        let Inner {
            settings, at_start, ..
        } = &*self.inner;
        check_prefix(prefix, &settings.namespace, at_start.max_key_bytes)?;
        Ok(namespaced(&settings.namespace, &Arc::from(prefix)))
    }

    fn listed(&self, locks: Vec<LockInfo>) -> Vec<LockInfo> {
        let bare = locks.into_iter().map(|lock| LockInfo {
            // Some stores have it at hand. What a list shows is the same on all of them.
            queue: Vec::new(),
            ..self.without_namespace(lock)
        });
        bare.collect()
    }

    /// The answer of the store, or its error, which begins with the subject.
    pub(super) async fn told<T>(
        &self,
        subject: impl FnOnce() -> String,
        asked: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, LockError> {
        match asked.await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.inner.store_failed(subject(), error).await),
        }
    }

    /// Checks that the store answers and lets this user look at locks, as a readiness probe may do
    /// every few seconds. One round trip; nothing is taken or changed. In a Redis cluster, one node
    /// is asked.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// dlock::init(dlock::Config::default()).await?;
    /// if let Some(manager) = dlock::manager() {
    ///     manager.ping().await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError::Unavailable`] within the request timeout, or another error of
    /// [`inspect`](Self::inspect).
    pub async fn ping(&self) -> Result<(), LockError> {
        // Any key will do: the answer is ignored.
        let key = namespaced(&self.inner.settings.namespace, &Arc::from("dlock-ping"));
        let answer = self.inner.leases.backend.inspect(&key);
        self.told(|| "ping".to_owned(), answer).await.map(drop)
    }

    /// Checks the servers of the store, for operators: whether each accepts a connection, its
    /// version, and settings of it that put locks at risk. Nothing is taken or changed. A check
    /// that does not apply, or that a server does not answer, is left out.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// for finding in manager.examine().await {
    ///     println!("{:?} {}: {}", finding.level, finding.check, finding.message);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn examine(&self) -> Vec<Finding> {
        let leases = &self.inner.leases;
        let mut found = leases.reach.each().await;
        found.extend(leases.backend.examine().await);
        found
    }

    /// What the store can promise. The guarantee for its tokens may change at run time, with the
    /// settings of its server.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    /// Refuses locks from now on, including those that are being waited for. Waits until the calls
    /// that it refuses have left the store, and every release in progress has reached the store or
    /// its lease has run out. A call that was dropped while it asked for a lock counts as a release.
    /// Call this before `main` returns: a guard that was dropped just before gives its lock back in
    /// the background. A lock that `min_hold` keeps is left to the store, which expires it in time.
    /// Bodies that still run are not waited for, and may re-enter what they hold.
    pub async fn shutdown(&self) {
        self.inner.leases.shutdown().await;
    }

    /// The only name of a key; an error if there are several.
    pub(super) fn single<'a>(
        &self,
        key: &'a LockKey,
        what_for: &str,
    ) -> Result<&'a Arc<str>, LockError> {
        let Inner {
            settings, at_start, ..
        } = &*self.inner;
        check_key(key, &settings.namespace, at_start.max_key_bytes)?;
        key.single().ok_or_else(|| LockError::InvalidKey {
            key: key.to_string(),
            reason: format!("it names several locks; {what_for} them one by one"),
        })
    }

    fn without_namespace(&self, mut info: LockInfo) -> LockInfo {
        let namespace = &*self.inner.settings.namespace;
        let bare = info.key.strip_prefix(namespace);
        // A user's own backend may show locks that it was not asked for.
        if let Some(bare) = bare.and_then(|bare| bare.strip_prefix(':'))
            && !namespace.is_empty()
        {
            info.key = bare.to_owned();
        }
        info
    }
}

/// How an error names a lock.
pub(super) fn lock_named(name: &str) -> String {
    format!("lock `{}`", Shown(name))
}

fn listing(prefix: &str) -> String {
    match prefix {
        "" => "listing the locks".to_owned(),
        prefix => format!("listing the locks `{}…`", Shown(prefix)),
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// One `init` at a time; another may try after it has failed.
static INITIALIZING: Mutex<()> = Mutex::const_new(());

/// Connects to the store and makes it the one that annotated functions and [`lock`](crate::lock)
/// use. Call it once, at start-up. The connection outlives the runtime on which it is called.
///
/// # Errors
///
/// [`LockError::AlreadyInitialized`] at the second call, even while the first is still connecting;
/// otherwise the errors of [`LockManager::connect`]. After a failure, or if the future is dropped,
/// it may be called again.
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// dlock::init(dlock::Config::default()).await?;
/// # Ok(()) }
/// ```
pub async fn init(config: Config) -> Result<(), LockError> {
    install(config).await
}

/// Boxed, so that the code is in the binary once, and not wherever `init` is awaited.
fn install(config: Config) -> BoxFuture<'static, Result<(), LockError>> {
    Box::pin(async move {
        let Ok(_initializing) = INITIALIZING.try_lock() else {
            return Err(LockError::AlreadyInitialized);
        };
        if INSTALLED.get().is_some() {
            return Err(LockError::AlreadyInitialized);
        }
        if config.is_memory() {
            tracing::warn!(
                target: "dlock",
                "dlock uses the `memory:` store: its locks hold inside this process only"
            );
        }
        let manager = LockManager::connect(config).await?;
        let installed = INSTALLED.set(Arc::clone(manager.inner()));
        installed.map_err(|_| LockError::AlreadyInitialized)
    })
}

/// The manager that [`init`] has installed, for its other methods: `inspect`, `list`, `ping`,
/// `capabilities`. `None` before `init`.
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// assert!(dlock::manager().is_none());
/// dlock::init(dlock::Config::default()).await?;
/// let manager = dlock::manager().expect("it was initialised");
/// assert!(manager.inspect("stock:42").await?.is_none());
/// # Ok(()) }
/// ```
#[must_use]
pub fn manager() -> Option<LockManager> {
    INSTALLED.get().map(Arc::clone).map(LockManager::new)
}

/// Refuses new locks from now on and waits until every release in progress is done; see
/// [`LockManager::shutdown`]. Does nothing before [`init`].
pub async fn shutdown() {
    if let Some(manager) = INSTALLED.get() {
        manager.leases.shutdown().await;
    }
}
