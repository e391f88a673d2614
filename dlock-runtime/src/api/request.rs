//! Requests a lock without the attribute.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::guard::LockGuard;
use super::run::Run;
use crate::apart::apart;
use crate::backend::Mode;
use crate::core::acquire::{LockSpec, acquire_anew, reenter};
use crate::core::inner::Inner;
use crate::core::scope::Scope;
use crate::error::LockError;
use crate::key::LockKey;
use crate::options::{OnLost, Options, Patience, Shapes};

/// Requests a lock on a key, with the manager that surrounds the call: that of
/// [`LockManager::scope`](crate::LockManager::scope), else the global one of `dlock::init`.
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// dlock::init(dlock::Config::default()).await?;
///
/// let guard = dlock::lock("report:2026-11")
///     .ttl(Duration::from_secs(30))
///     .acquire_within(Duration::from_secs(2))
///     .await?;
/// println!("writing under token {}", guard.token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "a request does nothing until it is acquired or run"]
#[track_caller]
pub fn lock(key: impl Into<LockKey>) -> LockRequest {
    LockRequest::new(None, key.into())
}

/// A request for a lock: set its options, then call [`acquire`](Self::acquire),
/// [`try_acquire`](Self::try_acquire), [`acquire_within`](Self::acquire_within) or
/// [`run`](LockRequest::<Always>::run).
#[derive(Clone)]
#[must_use = "a request does nothing until it is acquired or run"]
pub struct LockRequest<Runs = Always> {
    manager: Option<Arc<Inner>>,
    key: LockKey,
    options: Options,
    runs: PhantomData<Runs>,
}

impl<Runs> fmt::Debug for LockRequest<Runs> {
    /// Shows the key, and the options that were set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options {
            ttl,
            patience,
            mode,
            renew,
            max_hold,
            min_hold,
            once,
            on_lost,
            fenced,
            ..
        } = &self.options;
        let mut shown = f.debug_struct("LockRequest");
        shown.field("key", &self.key).field("mode", mode);
        let times = [
            ("ttl", ttl),
            ("max_hold", max_hold),
            ("min_hold", min_hold),
            ("once", once),
        ];
        for (name, time) in times {
            if let Some(time) = time {
                shown.field(name, time);
            }
        }
        if *patience != Patience::Configured {
            shown.field("patience", patience);
        }
        if *on_lost != OnLost::Cancel {
            shown.field("on_lost", on_lost);
        }
        if !renew {
            shown.field("renew", renew);
        }
        if *fenced {
            shown.field("fenced", fenced);
        }
        shown.finish_non_exhaustive()
    }
}

/// Type of a [`LockRequest`] whose body runs whenever it has the lock.
#[derive(Clone, Copy, Debug)]
pub enum Always {}

/// Type of a [`LockRequest`] whose body is remembered when it has returned `Ok`
/// ([`once`](LockRequest::once)).
#[derive(Clone, Copy, Debug)]
pub enum Once {}

impl LockRequest {
    #[track_caller]
    pub(crate) fn new(manager: Option<Arc<Inner>>, key: LockKey) -> Self {
        Self {
            manager,
            key,
            options: Options::new(),
            runs: PhantomData,
        }
    }

    /// Remembers for this time, by the store's clock, that the work has been done: when the body
    /// given to [`run`](LockRequest::<Once>::run) has returned `Ok`, or by
    /// [`LockGuard::release_done`]. Meanwhile, all who request the key or wait for it get
    /// [`LockError::Done`]. If the work fails, panics, is dropped or its process dies, the lock
    /// goes back as usual, and the next one tries again.
    ///
    /// For one key and an exclusive lock: several keys, [`read`](Self::read) and
    /// [`permits`](Self::permits) are a [`LockError::Config`], as is a time of zero. A store that
    /// cannot remember is a [`LockError::Unsupported`].
    /// [`LockManager::forget`](crate::LockManager::forget) lets the work be done again.
    ///
    /// The request has another type from here on, whose `run` takes a future of a `Result`.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// # use std::time::Duration;
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let report = || manager.lock("report:monday").once(day);
    /// let failed = report().run(async { Err::<(), _>("the printer is on fire") }).await;
    /// assert!(matches!(failed, Ok(Err(_))));
    /// let written = report().run(async { Ok::<_, ()>("written") }).await;
    /// assert!(matches!(written, Ok(Ok("written"))));
    /// let again = report().run(async { Ok::<_, ()>("written twice") }).await;
    /// assert!(matches!(again, Err(dlock::LockError::Done { .. })));
    /// # Ok(()) }
    /// ```
    pub fn once(self, remembered: Duration) -> LockRequest<Once> {
        let mut options = self.options;
        options.once = Some(remembered);
        LockRequest {
            manager: self.manager,
            key: self.key,
            options,
            runs: PhantomData,
        }
    }

    /// Runs a future under the lock as the attribute does: takes the lock, polls `body`, drops it,
    /// gives the lock back. Requests inside `body` for the same key re-enter.
    ///
    /// The result is the body's own output, or the reason why it did not run or was stopped.
    /// Dropping the future drops the body, then releases in the background. For it to be `Send`,
    /// so must the body's output be: `Box<dyn Error + Send + Sync>`, not `Box<dyn Error>`.
    pub fn run<F: Future>(self, body: F) -> Run<F> {
        Run::new(self.manager, self.key, self.options, body)
    }
}

impl LockRequest<Once> {
    /// Like [`run`](LockRequest::<Always>::run), for a future that returns a `Result`: `Ok` is
    /// remembered. If the store did not take the mark, this is retried in the background until the
    /// lease has ended, and then reported in a warning. The output is the body's in any case.
    pub fn run<T, E, F: Future<Output = Result<T, E>>>(self, body: F) -> Run<F> {
        Run::new(self.manager, self.key, self.options, body).done_if(Result::is_ok)
    }
}

impl<Runs> LockRequest<Runs> {
    /// Names this lock in spans, metrics and warnings, as the attribute's `key` does. `"unnamed"`
    /// by default.
    ///
    /// A metric is kept for each name, so use only a few: write `<…>` for the variable parts of the
    /// key, as in `"account:<id>"`, rather than the key itself.
    ///
    /// For [lock-order detection](crate::Config::detect_lock_order) all keys of a template with
    /// `<…>` are one lock, whatever the words inside. A key under a name without `<…>` is compared
    /// by itself. `<<` is a literal `<`. Several keys have a template each if these are written as
    /// for the attribute: `"account:<from>, audit"`, in the order of the keys.
    pub fn template(mut self, template: &'static str) -> Self {
        self.options.template = template;
        self.options.shapes = Shapes::OfTemplate;
        self
    }

    /// How long the lease lasts unless it is renewed, and so how soon others get the lock when this
    /// process dies. At least [`MIN_TTL`](crate::backend::MIN_TTL), and ten years at most.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// Shares the lock with other readers, and with holders of permits. Together with
    /// [`permits`](Self::permits) it is a [`LockError::Config`].
    pub fn read(mut self) -> Self {
        self.options.two_modes |= matches!(self.options.mode, Mode::Permits(_));
        self.options.mode = Mode::Read;
        self
    }

    /// Shares the lock among at most `most` bodies at once, over all processes, each with a lease
    /// of its own. Each reader counts as one, but has no limit itself; a writer is alone. All of
    /// them wait in one queue. If callers give different numbers, each one's own number applies to
    /// it.
    ///
    /// 0 is a [`LockError::Config`], as are permits together with [`read`](Self::read), and two or
    /// more with [`fenced`](Self::fenced); a store without permits is a
    /// [`LockError::Unsupported`].
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let first = manager.lock("api:acme").permits(2).acquire().await?;
    /// let second = manager.lock("api:acme").permits(2).acquire().await?;
    /// let third = manager.lock("api:acme").permits(2).try_acquire().await;
    /// assert!(matches!(third, Err(dlock::LockError::Busy { .. })));
    /// # drop((first, second));
    /// # Ok(()) }
    /// ```
    pub fn permits(mut self, most: u32) -> Self {
        self.options.two_modes |= self.options.mode == Mode::Read;
        self.options.mode = Mode::Permits(most);
        self
    }

    /// `false` requests a fixed lease: the work must end within the ttl.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Stops renewing this long after the grant, so that work that hangs cannot hold the lock for
    /// ever. The last lease still lasts its ttl, so the lock is held for at most this limit plus a
    /// ttl. An error with [`renew(false)`](Self::renew), and below [`min_hold`](Self::min_hold).
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.options.max_hold = Some(limit);
        self
    }

    /// Gives the lock back no sooner than this after the grant, even if the work ends earlier.
    pub fn min_hold(mut self, least: Duration) -> Self {
        self.options.min_hold = Some(least);
        self
    }

    /// What happens to a body given to [`run`](Self::run) when the lease is lost.
    pub fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.options.on_lost = on_lost;
        self
    }

    /// `true` refuses a store whose tokens are not strict.
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.options.fenced = fenced;
        self
    }

    /// Gives up after this time, including an outage of the store: the same as
    /// [`patience`](Self::patience) with [`Patience::Within`], and as the attribute's `timeout`. A
    /// time of zero is a `try`: it does not wait, and fails with [`LockError::Busy`]. Ten years are
    /// the most.
    ///
    /// When a longer time has passed, the call fails with [`LockError::Timeout`], or with
    /// [`LockError::Unavailable`] if the store did not answer.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// use std::time::Duration;
    ///
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let limit = Duration::from_millis(20);
    /// let sold = manager.lock("stock:42").timeout(limit).run(async { "sold" }).await?;
    /// assert_eq!(sold, "sold");
    ///
    /// let guard = manager.lock("stock:42").acquire().await?;
    /// let refused = manager.lock("stock:42").timeout(limit).run(async { "sold twice" }).await;
    /// assert!(matches!(refused, Err(dlock::LockError::Timeout { .. })));
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn timeout(self, limit: Duration) -> Self {
        self.patience(Patience::Within(limit))
    }

    /// How long to wait for the lock. For a time, [`timeout`](Self::timeout) is shorter.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.options.patience = patience;
        self
    }

    /// Waits for the lock, as long as [`patience`](Self::patience) allows, or else the manager's
    /// configuration.
    ///
    /// Inside a body that holds the key this re-enters: the guard then keeps the lock from being
    /// released until the guard is dropped. The guard itself opens no scope; code that should
    /// re-enter belongs in [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// Every [`LockError`] except `Lost`. Dropping the future leaves the queue, and gives back a
    /// grant that arrives meanwhile.
    pub async fn acquire(self) -> Result<LockGuard, LockError> {
        self.guard().await
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    ///
    /// [`LockError::Busy`] if somebody holds it; otherwise as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<LockGuard, LockError> {
        self.patience(Patience::Try).guard().await
    }

    /// Waits for the lock for at most `limit`, including an outage of the store. Ten years at most.
    ///
    /// # Errors
    ///
    /// [`LockError::Timeout`] when the limit has passed ([`LockError::Busy`] for a limit of zero);
    /// otherwise as [`acquire`](Self::acquire).
    pub async fn acquire_within(self, limit: Duration) -> Result<LockGuard, LockError> {
        self.patience(Patience::Within(limit)).guard().await
    }

    async fn guard(self) -> Result<LockGuard, LockError> {
        let scope = Scope::current();
        let manager = scope.manager(self.manager, &self.key)?;
        let spec = Box::new(LockSpec {
            key: self.key,
            options: self.options,
        });
        let once = spec.options.once;
        let section = match reenter(&manager, &spec, &scope)? {
            Some(section) => section,
            None => apart(acquire_anew(manager, spec, &scope)).await?,
        };
        Ok(LockGuard::new(section, once))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_a_patience() {
        let limit = Duration::from_secs(5);
        let request = lock("k").timeout(limit);
        assert_eq!(request.options.patience, Patience::Within(limit));
        assert!(format!("{request:?}").contains("patience: Within(5s)"));
    }

    #[tokio::test]
    async fn a_request_knows_where_it_was_made() {
        let manager = crate::LockManager::connect(crate::Config::default())
            .await
            .expect("memory connects");
        let here = std::panic::Location::caller();
        let sites = [lock("k"), manager.lock("k")].map(|request| request.options.site);
        for site in sites {
            assert_eq!((site.file(), site.line()), (here.file(), here.line() + 1));
        }
    }
}
