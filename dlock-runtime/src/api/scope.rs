//! What a body sees of the locks around it, and how they are carried to other tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::core::inner::Inner;
use crate::core::scope::Scope;
use crate::core::section::Section;
use crate::error::LossReason;
use crate::key::LockKey;
use crate::token::FencingToken;

/// The innermost lock around the calling code, if any.
///
/// Inside a body with `on_lost = "continue"`, this shows the loss of the lock. Send its token along
/// with guarded writes.
///
/// ```
/// # use dlock_runtime as dlock;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
/// use dlock::{Config, LockManager, current};
///
/// let manager = LockManager::connect(Config::default()).await?;
/// let token = manager.lock("report").run(async { current().map(|held| held.token()) }).await?;
/// assert!(token.is_some());
/// assert!(current().is_none());
/// # Ok(()) }
/// ```
#[must_use]
pub fn current() -> Option<Held> {
    let scope = Scope::current();
    let section = scope.sections().find(|section| !section.is_over())?;
    Some(Held {
        section: Arc::clone(section),
    })
}

/// A lock around the calling code; see [`current`].
#[derive(Clone)]
pub struct Held {
    section: Arc<Section>,
}

impl Held {
    /// The key as written.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.section.key()
    }

    /// The fencing token; with several keys, the token of the first as written.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.section.token()
    }

    /// The tokens of all keys in the order written, without duplicates.
    #[must_use]
    pub fn tokens(&self) -> Vec<FencingToken> {
        self.section.tokens()
    }

    /// Whether the lock is still held: false once it is lost or released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.section.is_held()
    }

    /// The ttl of the lease as granted; with several keys, the shortest. Each renewal makes the
    /// lease last this long again. The value does not change when the lock is lost.
    ///
    /// It may be less than requested: ZooKeeper caps the timeout of a session, and so the ttl of a
    /// lease. A body that re-enters has the lease of the body around it. Whatever depends on the
    /// ttl, such as the warning of [`lost_within`](Self::lost_within), uses this value.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// # use std::time::Duration;
    /// # let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let body = async { dlock::current().map(|held| held.ttl()) };
    /// let granted = manager.lock("press").ttl(Duration::from_secs(30)).run(body).await?;
    /// assert_eq!(granted, Some(Duration::from_secs(30)), "`memory:` grants what is asked for");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.section.ttl()
    }

    /// The time until which the lock is surely held, by the local monotonic clock; with several
    /// keys, the end of the first lease. Each renewal extends it. `None` once the lock is lost or
    /// released.
    ///
    /// Anything that cannot ask [`is_held`](Self::is_held) has to stop by then: a child process, a
    /// device, a thread that blocks. The store may report the lock as gone earlier;
    /// [`lost`](Self::lost) resolves then.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// # use std::time::Duration;
    /// # let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let body = async { dlock::current().and_then(|held| held.deadline()) };
    /// let until = manager.lock("press").run(body).await?;
    /// assert!(until.is_some());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.section.deadline()
    }

    /// Resolves with the reason when the lease is lost, at once if it is lost already; never if the
    /// lock is released first. Cancel-safe.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # async fn serve() {}
    /// # async fn body() {
    /// let held = dlock::current().expect("inside a lock");
    /// tokio::select! {
    ///     () = serve() => {}
    ///     reason = held.lost() => println!("stopped: {reason}"),
    /// }
    /// # }
    /// ```
    pub async fn lost(&self) -> LossReason {
        self.section.lost().await
    }

    /// Resolves `early` before the lock would be lost if no renewal is confirmed until then: time
    /// to stop cleanly what must not outlive the lock. Resolves at once if less time is left or the
    /// lock is lost, and never if the lock is released first. A renewal may still be confirmed
    /// afterwards. Cancel-safe.
    ///
    /// A renewed lease normally has at least two thirds of its [`ttl`](Self::ttl) left, minus the
    /// time that the store takes to answer. So choose less than that, or this resolves although
    /// nothing is wrong. If renewals end ([`max_hold`](crate::LockRequest::max_hold),
    /// `renew(false)`), it resolves before the last lease ends.
    ///
    /// Needs a tokio runtime with timers.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), dlock::LockError> {
    /// # use std::time::Duration;
    /// # use dlock::backend::memory::Memory;
    /// # let memory = Memory::new();
    /// # let manager = dlock::LockManager::connect(dlock::Config::with_backend(memory.clone())).await?;
    /// let body = async {
    ///     let held = dlock::current().expect("inside");
    /// #   memory.faults().set_unavailable(true);
    ///     // The store cannot be reached any more.
    ///     held.lost_within(Duration::from_secs(5)).await;
    ///     held.is_held()
    /// };
    /// assert!(manager.lock("press").run(body).await?, "for five seconds more");
    /// # Ok(()) }
    /// ```
    pub async fn lost_within(&self, early: Duration) {
        self.section.lost_within(early).await;
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.section.show("Held", f)
    }
}

/// Lets a spawned future re-enter the locks of its parent.
pub trait LockScopeExt: Future + Sized {
    /// Keeps the calling code's locks and manager around this future, wherever it is polled.
    ///
    /// A spawned task queues for a lock like any other. With this it re-enters, as long as the lock
    /// is held; once its parent has released the lock, it queues again. A body that has re-entered
    /// keeps the lock from being released until it ends.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use dlock::{Config, LockManager, LockScopeExt, lock};
    ///
    /// let manager = LockManager::connect(Config::default()).await?;
    /// let body = async {
    ///     let child = async { lock("import").run(async { "inside" }).await };
    ///     tokio::spawn(child.in_lock_scope()).await
    /// };
    /// assert_eq!(manager.scope(lock("import").run(body)).await???, "inside");
    /// # Ok(()) }
    /// ```
    fn in_lock_scope(self) -> InLockScope<Self> {
        InLockScope {
            future: Some(self),
            around: Around::Scope(Scope::current()),
        }
    }
}

impl<F: Future> LockScopeExt for F {}

pin_project! {
    /// The future of [`LockScopeExt::in_lock_scope`] and of
    /// [`LockManager::scope`](crate::LockManager::scope).
    #[must_use = "futures do nothing unless polled"]
    pub struct InLockScope<F> {
        #[pin]
        future: Option<F>,
        around: Around,
    }

    impl<F> PinnedDrop for InLockScope<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            this.around.scope().enter_to_drop(|| this.future.set(None));
        }
    }
}

/// What to put around a future.
enum Around {
    Scope(Scope),
    /// Replaces only the manager of the surrounding scope. The held locks are those of the code
    /// that polls, so a future that is spawned leaves them behind.
    Manager(Arc<Inner>),
}

impl Around {
    fn scope(&self) -> Scope {
        match self {
            Self::Scope(scope) => scope.clone(),
            Self::Manager(manager) => Scope::current().of_manager(manager),
        }
    }
}

impl<F> fmt::Debug for InLockScope<F> {
    /// Shows the manager that calls inside use, or the keys that they re-enter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("InLockScope");
        match &self.around {
            Around::Manager(manager) => shown.field("manager", manager),
            Around::Scope(scope) => {
                let held = scope.sections().filter(|section| !section.is_over());
                let keys: Vec<_> = held.map(|section| section.key()).collect();
                shown.field("inside", &keys)
            }
        };
        shown.finish_non_exhaustive()
    }
}

impl<F> InLockScope<F> {
    pub(crate) fn of_manager(future: F, manager: Arc<Inner>) -> Self {
        Self {
            future: Some(future),
            around: Around::Manager(manager),
        }
    }
}

impl<F: Future> Future for InLockScope<F> {
    type Output = F::Output;

    /// Also drops the future inside the scope once it has ended.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        this.around.scope().enter(|| {
            let Some(running) = this.future.as_mut().as_pin_mut() else {
                panic!("a future was polled after it had completed")
            };
            let answer = running.poll(cx);
            if answer.is_ready() {
                this.future.set(None);
            }
            answer
        })
    }
}
