//! Which store to use, and the defaults for its locks.

mod env;
mod url;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::backend::Backend;
use crate::backend::origin::{LONGEST_NAME, is_name, written};
use crate::core::inner::Settings;
use crate::error::LockError;
use crate::key::{MAX_KEY_BYTES, Shown};
use crate::limits::{self, DEFAULT_REQUEST_TIMEOUT};
use crate::options::Patience;

use self::url::{MemoryUrl, Source};

/// The ttl of a lock that does not set its own.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// How often in a row a lease is handed over inside the process.
const DEFAULT_HANDOFF: u32 = 32;

/// Which store to use, and the defaults for its locks.
///
/// `Config::default()` is the `memory:` store: locks of this process only.
///
/// ```
/// # use dlock_runtime as dlock;
/// use std::time::Duration;
/// use dlock::Config;
///
/// # fn main() -> Result<(), dlock::LockError> {
/// let config = Config::from_url("memory:")?
///     .namespace("shop")
///     .ttl(Duration::from_secs(30))
///     .timeout(Duration::from_secs(2));
/// # let _ = config; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Config {
    store: Arc<dyn Source>,
    request_timeout: Duration,
    settings: Settings,
}

/// A backend that was passed in. It serves only one manager.
struct Given {
    backend: Arc<dyn Backend>,
    taken: AtomicBool,
}

impl Source for Given {
    fn is_url(&self) -> bool {
        false
    }

    fn backend(&self, _: Duration) -> Result<Arc<dyn Backend>, LockError> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(LockError::config(
                "with_backend",
                "this backend is connected already; make a `Config` with a backend of its own \
                 for each manager",
            ));
        }
        Ok(Arc::clone(&self.backend))
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::with_store(Arc::new(MemoryUrl))
    }
}

impl Config {
    fn with_store(store: Arc<dyn Source>) -> Self {
        Self {
            store,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            settings: Settings {
                namespace: Arc::from(""),
                ttl: DEFAULT_TTL,
                patience: Patience::Wait,
                handoff: DEFAULT_HANDOFF,
                fenced: false,
                detect_lock_order: cfg!(debug_assertions),
                token_floor: 0,
                request_timeout: None,
                label: None,
            },
        }
    }

    /// The store at this URL: `memory:`, `redis://host:port/db`, … With `token_floor=N`
    /// among its parameters, as [`token_floor`](Self::token_floor) says.
    ///
    /// # Errors
    ///
    /// [`LockError::Config`] if the URL is malformed, its scheme unknown, or
    /// the feature for it is off. Nothing is connected yet.
    pub fn from_url(url: &str) -> Result<Self, LockError> {
        Self::from_setting("store URL", url)
    }

    fn from_setting(setting: &'static str, url: &str) -> Result<Self, LockError> {
        let (store, floor) = url::parse(setting, url)?;
        Ok(Self::with_store(store).token_floor(floor))
    }

    /// The store in `DLOCK_URL`, with `DLOCK_NAMESPACE`, `DLOCK_TTL`,
    /// `DLOCK_LABEL`, `DLOCK_TIMEOUT`, `DLOCK_REQUEST_TIMEOUT` (durations such as `30s` or
    /// `1m30s`), `DLOCK_DETECT_LOCK_ORDER` (`true` or `false`) and `DLOCK_TOKEN_FLOOR` where
    /// they are set.
    ///
    /// # Errors
    ///
    /// [`LockError::Config`] names the variable that is wrong. A missing `DLOCK_URL` is an error
    /// too: a service that lost its URL must not fall back to locks that exclude nobody. So is a
    /// variable whose name differs from one of these by one or two letters, since it would have no
    /// effect. Others are ignored.
    pub fn from_env() -> Result<Self, LockError> {
        env::read(std::env::vars_os(), None)
    }

    /// The store at this URL, with everything else as [`from_env`](Self::from_env) reads it: for a
    /// program whose user may choose another store than `DLOCK_URL`.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// let config = dlock::Config::from_env_at("memory:")?;
    /// # let _ = config; Ok::<_, dlock::LockError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`from_url`](Self::from_url), and those of `from_env` except for `DLOCK_URL`, which
    /// is not read.
    pub fn from_env_at(url: &str) -> Result<Self, LockError> {
        env::read(std::env::vars_os(), Some(url))
    }

    /// A store of your own, or one that is configured in code. It serves one manager: clones of
    /// this `Config` cannot be connected a second time. No `DLOCK_…` variable is read for it. Set
    /// the request timeout on the backend: [`request_timeout`](Self::request_timeout) of this
    /// `Config` has no effect.
    pub fn with_backend(backend: impl Backend) -> Self {
        let given = Given {
            backend: Arc::new(backend),
            taken: AtomicBool::new(false),
        };
        Self::with_store(Arc::new(given))
    }

    /// Prefixes every key, so that services can share a store without sharing locks. No prefix by
    /// default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<Arc<str>>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// The ttl of locks that do not set their own. 30 seconds by default; from
    /// [`MIN_TTL`](crate::backend::MIN_TTL) to ten years, within what the store can keep.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// The name of this service, shown to those who look at its locks, beside its host and process
    /// id: in the store, in [`inspect`](crate::LockManager::inspect), in the tool `dlock`, and in
    /// the server's list of connections. By default, the name of the program. At most 63 letters,
    /// digits, `.`, `_` and `-`.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// let config = dlock::Config::default().label("orders");
    /// # let _ = config;
    /// ```
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.settings.label = Some(label.into());
        self
    }

    /// Labels the manager with any name, whose characters are replaced where a label cannot have
    /// them.
    #[doc(hidden)]
    #[must_use]
    pub fn labelled_as(self, name: &str) -> Self {
        self.label(written(name))
    }

    /// How long to wait for locks that do not set a limit themselves. For ever by default; ten
    /// years at most.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.patience = Patience::Within(timeout);
        self
    }

    /// How many times in a row a lease passes from task to task inside this process before the
    /// store decides again. 32 by default, at most 63; `0` keeps strictly to the store's order.
    #[must_use]
    pub fn handoff(mut self, times: u32) -> Self {
        self.settings.handoff = times;
        self
    }

    /// How long the store may take to answer before it counts as unavailable. 5 seconds by default;
    /// from a millisecond to 24 hours. A backend passed to [`with_backend`](Self::with_backend)
    /// uses its own setting.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Refuses to connect to a store whose fencing tokens are not strict, and refuses every lock
    /// once they stop being strict.
    #[must_use]
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.settings.fenced = fenced;
        self
    }

    /// Lifts the store's [fencing tokens](crate::FencingToken) above a number, for a change
    /// of stores: what the locks guard has seen the tokens of the old one, and refuses lower
    /// ones. `0`, the default, changes nothing; `token_floor=N` in a URL is the same.
    ///
    /// The store keeps the floor, and never lowers it. Once
    /// [`connect`](crate::LockManager::connect) has returned, each grant of every process has
    /// a token above it, whether that process names it or not; a lease that was granted
    /// before keeps its tokens to its end. `docs/migrating.md` has the steps of a change.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// use dlock::{Config, LockManager};
    ///
    /// let manager = LockManager::connect(Config::default().token_floor(1_000_000)).await?;
    /// let guard = manager.lock("stock:42").acquire().await?;
    /// assert!(u64::from(guard.token()) > 1_000_000);
    /// # guard.release().await }
    /// ```
    ///
    /// To connect is a [`LockError::Config`] for a number that leaves no room below 2^63
    /// (Redis: 2^53), and [`LockError::Unsupported`] in a store that cannot.
    #[must_use]
    pub fn token_floor(mut self, floor: u64) -> Self {
        self.settings.token_floor = floor;
        self
    }

    /// Warns when locks are taken in orders that can end in a deadlock, before one does. On by
    /// default in debug builds. When off, it costs nothing.
    ///
    /// While it is on, the manager records which lock was waited for while which other lock was
    /// held. When these orders form a circle (`a` then `b` here, `b` then `a` there, or over more
    /// locks), it logs one `tracing` warning with target `dlock::order`, with all the places in the
    /// code and a way out. The call itself proceeds. The tasks need not actually meet: a test that
    /// runs each path once shows the mistake.
    ///
    /// Locks are compared by template: all keys of `"account:<id>"` are one lock, whatever the
    /// names inside `<…>`. Taking two of them, one under the other, is a mistake if both orders of
    /// the keys occur. A key without a template
    /// ([`LockRequest::template`](crate::LockRequest::template)) is compared by itself. For a
    /// request that does not wait (`try`), only the locks that it then holds count.
    ///
    /// Detection considers the bodies that surround a call, as re-entry does. A lock that is held
    /// by a guard of [`acquire`](crate::LockRequest::acquire), which may be anywhere, is not seen.
    /// Nor is one that was left behind by a spawn without
    /// [`in_lock_scope`](crate::LockScopeExt::in_lock_scope).
    #[must_use]
    pub fn detect_lock_order(mut self, detect: bool) -> Self {
        self.settings.detect_lock_order = detect;
        self
    }

    /// The configured ttl of locks that do not set their own.
    #[must_use]
    pub fn configured_ttl(&self) -> Duration {
        self.settings.ttl
    }

    /// The configured time that the store may take to answer.
    #[must_use]
    pub fn configured_request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Whether this is the URL `memory:`, whose locks exist in this process only.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        self.store.is_memory()
    }

    /// The backend alone, not yet started. The conformance suite puts its own around it, or calls
    /// it as a manager does.
    ///
    /// # Errors
    ///
    /// As of [`LockManager::connect`](crate::LockManager::connect), before it connects.
    #[doc(hidden)]
    pub fn into_backend(self) -> Result<Arc<dyn Backend>, LockError> {
        Ok(self.into_parts()?.0)
    }

    /// The store, not yet connected, and the settings of its locks.
    pub(crate) fn into_parts(self) -> Result<(Arc<dyn Backend>, Settings), LockError> {
        let mut settings = self.settings;
        limits::HANDOFF.check(settings.handoff)?;
        limits::REQUEST_TIMEOUT.check(self.request_timeout)?;
        limits::TTL.check(settings.ttl)?;
        limits::TOKEN_FLOOR.check(settings.token_floor)?;
        if let Patience::Within(timeout) = settings.patience {
            limits::TIMEOUT.check(timeout)?;
        }
        // Leaves room for the colon and a key of one byte.
        if settings.namespace.len() > MAX_KEY_BYTES - 2 {
            return Err(LockError::config(
                "namespace",
                format!(
                    "it is {} bytes long; give one of at most {}, better a few: it is a part of \
                     each key",
                    settings.namespace.len(),
                    MAX_KEY_BYTES - 2
                ),
            ));
        }
        if let Some(control) = settings.namespace.chars().find(|c| c.is_control()) {
            return Err(LockError::config(
                "namespace",
                format!("holds the control character {control:?}; leave it out"),
            ));
        }
        check_label("label", settings.label.as_deref())?;
        let backend = self.store.backend(self.request_timeout)?;
        settings.request_timeout = self.store.is_url().then_some(self.request_timeout);
        settings.namespace = escape_namespace(&settings.namespace);
        Ok((backend, settings))
    }
}

fn check_label(setting: &str, label: Option<&str>) -> Result<(), LockError> {
    match label {
        Some(label) if !is_name(label) => Err(LockError::config(
            setting,
            // Without the label itself: it may be a URL that was put into the wrong variable.
            format!("it is not 1 to {LONGEST_NAME} letters, digits, `.`, `_` or `-`"),
        )),
        _ => Ok(()),
    }
}

/// Escapes colons, so that the namespace ends at the first one and no two namespaces share a key.
fn escape_namespace(namespace: &str) -> Arc<str> {
    Arc::from(namespace.replace('%', "%25").replace(':', "%3A"))
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("store", &self.store)
            .field(
                "namespace",
                &format_args!("{}", Shown(&self.settings.namespace)),
            )
            .field(
                "label",
                &self
                    .settings
                    .label
                    .as_deref()
                    .filter(|label| is_name(label)),
            )
            .field("ttl", &self.settings.ttl)
            .field("patience", &self.settings.patience)
            .field("handoff", &self.settings.handoff)
            .field("request_timeout", &self.request_timeout)
            .field("fenced", &self.settings.fenced)
            .field("token_floor", &self.settings.token_floor)
            .field("detect_lock_order", &self.settings.detect_lock_order)
            .finish()
    }
}
