//! The scope: which locks, and which manager, surround the code that called us.
//!
//! It is a value in a task-local that is set around the body's future, so
//! that reentrancy follows the chain of awaits and not a task or thread id: a
//! function awaited inside the body finds the body's locks; a sibling in
//! `join!`, polled by the same task but not inside the body, does not.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use once_cell::sync::OnceCell;
use pin_project_lite::pin_project;

use crate::core::inner::Inner;
use crate::core::nesting::Nesting;
use crate::core::section::Section;
use crate::error::LockError;
use crate::key::LockKey;
use crate::token::FencingToken;

tokio::task_local! {
    static SCOPE: Scope;
}

/// The manager of the whole process: the one that calls use which name none.
pub(super) static INSTALLED: OnceCell<Arc<Inner>> = OnceCell::new();

/// What surrounds the current code.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    /// Used instead of the global manager.
    manager: Option<Arc<Inner>>,
    nesting: Nesting,
}

impl Scope {
    /// The scope of the code that calls this.
    pub(crate) fn current() -> Self {
        SCOPE.try_with(Clone::clone).unwrap_or_default()
    }

    /// The scope of the code that calls this, with another manager.
    fn of_manager(manager: &Arc<Inner>) -> Self {
        Self {
            manager: Some(Arc::clone(manager)),
            ..Self::current()
        }
    }

    /// The manager of a call inside this scope that names none.
    pub(crate) fn manager_for(&self, key: &LockKey) -> Result<Arc<Inner>, LockError> {
        let manager = self.manager.as_ref().or_else(|| INSTALLED.get());
        manager
            .cloned()
            .ok_or_else(|| LockError::NotInitialized { key: key.clone() })
    }

    /// The locks that this scope is inside of.
    pub(crate) fn nesting(&self) -> &Nesting {
        &self.nesting
    }

    /// This scope with a section inside of it.
    pub(crate) fn inside(mut self, section: Arc<Section>) -> Self {
        self.nesting = self.nesting.inside(section);
        self
    }

    /// Polls a future within this scope.
    pub(crate) fn enter<R>(&self, poll: impl FnOnce() -> R) -> R {
        SCOPE.sync_scope(self.clone(), poll)
    }
}

/// The innermost lock that the calling code is inside of, if any.
///
/// Inside a body under `on_lost = "continue"` this is how the loss shows; the
/// token is what guarded writes are sent along with.
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
    let section = scope
        .nesting
        .sections()
        .find(|section| !section.is_over())?;
    Some(Held {
        section: Arc::clone(section),
    })
}

/// A lock that the calling code is inside of; see [`current`].
#[derive(Clone, Debug)]
pub struct Held {
    section: Arc<Section>,
}

impl Held {
    /// The key as written.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.section.key()
    }

    /// The fencing token; with several keys, that of the first as written.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.section.token()
    }

    /// The tokens of all keys in the order written, duplicates folded.
    #[must_use]
    pub fn tokens(&self) -> Vec<FencingToken> {
        self.section.locks().iter().map(|lock| lock.token).collect()
    }

    /// Whether the lock is still held: false once it is lost or released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.section.is_held()
    }

    /// Resolves when the lease is lost, at once if it has been; never if the
    /// lock is released first. Cancel-safe.
    pub async fn lost(&self) {
        self.section.lost().await;
    }
}

/// Lets a future that is spawned re-enter what its parent holds.
pub trait LockScopeExt: Future + Sized {
    /// Keeps the calling code's locks and manager around this future, wherever
    /// it is polled.
    ///
    /// A spawned task queues for a lock like anyone. With this it re-enters,
    /// as long as the lock is held; once its parent has released, it queues
    /// again. A body that has re-entered keeps the lock from being released
    /// until it ends.
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
            scope: Scope::current(),
        }
    }
}

impl<F: Future> LockScopeExt for F {}

pin_project! {
    /// The future of [`LockScopeExt::in_lock_scope`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct InLockScope<F> {
        #[pin]
        future: Option<F>,
        scope: Scope,
    }

    impl<F> PinnedDrop for InLockScope<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let (scope, mut future) = (this.scope, this.future);
            scope.enter(|| future.set(None));
        }
    }
}

impl<F: Future> Future for InLockScope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let (scope, future) = (this.scope, this.future);
        poll_inside(scope, future, cx)
    }
}

pin_project! {
    /// The future of [`LockManager::scope`](crate::LockManager::scope).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ManagerScope<F> {
        #[pin]
        future: Option<F>,
        manager: Arc<Inner>,
    }

    impl<F> PinnedDrop for ManagerScope<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let (scope, mut future) = (Scope::of_manager(this.manager), this.future);
            scope.enter(|| future.set(None));
        }
    }
}

impl<F> ManagerScope<F> {
    pub(crate) fn new(future: F, manager: Arc<Inner>) -> Self {
        Self {
            future: Some(future),
            manager,
        }
    }
}

impl<F: Future> Future for ManagerScope<F> {
    type Output = F::Output;

    /// Of the surrounding scope, only the manager is replaced. What it holds is
    /// that of the code that polls: a future that is spawned leaves it behind.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        poll_inside(&Scope::of_manager(this.manager), this.future, cx)
    }
}

/// Polls the future within the scope, and drops it there when it has ended.
fn poll_inside<F: Future>(
    scope: &Scope,
    mut future: Pin<&mut Option<F>>,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    scope.enter(|| {
        let Some(running) = future.as_mut().as_pin_mut() else {
            panic!("a future was polled after it had completed")
        };
        let answer = running.poll(cx);
        if answer.is_ready() {
            future.set(None);
        }
        answer
    })
}
