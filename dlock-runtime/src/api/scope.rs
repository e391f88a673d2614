//! What a body sees of the locks around it, and what carries them elsewhere.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::core::inner::Inner;
use crate::core::scope::Scope;
use crate::core::section::Section;
use crate::key::LockKey;
use crate::token::FencingToken;

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
    let section = scope.sections().find(|section| !section.is_over())?;
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
        self.section.tokens()
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
            around: Around::Scope(Scope::current()),
        }
    }
}

impl<F: Future> LockScopeExt for F {}

pin_project! {
    /// The future of [`LockScopeExt::in_lock_scope`] and of
    /// [`LockManager::scope`](crate::LockManager::scope).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct InLockScope<F> {
        #[pin]
        future: Option<F>,
        around: Around,
    }

    impl<F> PinnedDrop for InLockScope<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            this.around.scope().enter(|| this.future.set(None));
        }
    }
}

/// What is put around a future.
#[derive(Debug)]
enum Around {
    Scope(Scope),
    /// Of the surrounding scope, only the manager is replaced. What it holds is that
    /// of the code that polls: a future that is spawned leaves it behind.
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

    /// The future is dropped in the scope too, when it has ended.
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
