//! A lock that is held as a value.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Released;
use crate::core::once::OnceBody;
use crate::core::section::{Section, SectionRef};
use crate::error::{LockError, LossReason};
use crate::key::LockKey;
use crate::token::FencingToken;

/// A lock that is held until this is dropped or [released](LockGuard::release).
///
/// The lease is renewed while the guard lives. Nothing is cancelled when it is lost: ask
/// [`is_held`](Self::is_held) or await [`lost`](Self::lost).
///
/// Dropping the guard gives the lock back in the background, from any thread, inside a runtime or
/// not. [`shutdown`](crate::shutdown) waits for that. `std::process::exit` drops nothing and waits
/// for nothing, so the lock stays held until its ttl has passed: return from `main` instead.
#[must_use = "a lock is given back as soon as its guard is dropped"]
pub struct LockGuard {
    /// Declared before `section`, so that work not reported as done counts as undone before the
    /// lock goes back.
    once: Option<OnceBody>,
    section: SectionRef,
}

impl LockGuard {
    pub(crate) fn new(section: SectionRef, once: Option<Duration>) -> Self {
        let once = once.map(|lasts| OnceBody::begin(section.get(), lasts));
        Self { once, section }
    }

    /// The key as written.
    #[must_use]
    pub fn key(&self) -> &LockKey {
        self.section().key()
    }

    /// The fencing token; with several keys, the token of the first as written.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.section().token()
    }

    /// The tokens of all keys in the order written, without duplicates.
    #[must_use]
    pub fn tokens(&self) -> Vec<FencingToken> {
        self.section().tokens()
    }

    /// Whether the lease is still valid by the local clock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.section().is_held()
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
    /// let asked = Duration::from_secs(30);
    /// let guard = manager.lock("press").ttl(asked).acquire().await?;
    /// if guard.ttl() < asked {
    ///     println!("the store grants {:?} at most", guard.ttl());
    /// }
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.section().ttl()
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
    /// let guard = manager.lock("press").ttl(Duration::from_secs(30)).acquire().await?;
    /// let until = guard.deadline().expect("it is held");
    /// assert!(until > tokio::time::Instant::now());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.section().deadline()
    }

    /// Resolves with the reason when the lease is lost, at once if it is lost already. Cancel-safe.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), dlock::LockError> {
    /// # use std::time::Duration;
    /// # let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let minute = Duration::from_secs(60);
    /// let guard = manager.lock("press").ttl(minute).renew(false).acquire().await?;
    /// let reason = guard.lost().await;
    /// assert_eq!(reason, dlock::LossReason::Overran);
    /// println!("stopped: {reason}");
    /// # Ok(()) }
    /// ```
    pub async fn lost(&self) -> LossReason {
        self.section().lost().await
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
    /// let guard = manager.lock("press").ttl(Duration::from_secs(30)).acquire().await?;
    /// # memory.faults().set_unavailable(true);
    /// // The store cannot be reached any more.
    /// guard.lost_within(Duration::from_secs(5)).await;
    /// assert!(guard.is_held(), "for five seconds more");
    /// # Ok(()) }
    /// ```
    pub async fn lost_within(&self, early: Duration) {
        self.section().lost_within(early).await;
    }

    /// Gives the lock back and waits until the store has taken it. If this future is dropped, the
    /// release continues in the background.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the store says that the lock no longer belonged to this guard: the
    /// work may have overlapped with another holder's. [`LockError::Unavailable`] if the store did
    /// not answer: the release is retried in the background until the lease has run out.
    pub async fn release(mut self) -> Result<(), LockError> {
        drop(self.once.take());
        let section = Arc::clone(self.section());
        if let Some(reason) = section.loss() {
            return Err(section.lost_error(reason));
        }
        let Some(teardown) = self.section.leave() else {
            return Ok(());
        };
        match teardown.finish().await {
            Ok(Released::Released) => Ok(()),
            Ok(Released::NotHeld) => Err(section.lost_error(LossReason::Gone)),
            Err(error) => Err(section.not_released(error)),
        }
    }

    /// Gives the lock back as [`release`](Self::release) does, and reports the work as done: for
    /// the time that the request gave to [`once`](crate::LockRequest::once), requests for the key
    /// get [`LockError::Done`]. A guard that is dropped or released does not report this.
    ///
    /// ```
    /// # use dlock_runtime as dlock;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::LockError> {
    /// # use std::time::Duration;
    /// let manager = dlock::LockManager::connect(dlock::Config::default()).await?;
    /// let day = Duration::from_secs(24 * 60 * 60);
    /// let guard = manager.lock("report:monday").once(day).acquire().await?;
    /// // … the work …
    /// guard.release_done().await?;
    /// let again = manager.lock("report:monday").try_acquire().await;
    /// assert!(matches!(again, Err(dlock::LockError::Done { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `release`; then the work may be done once more. [`LockError::Config`] if the
    /// request did not use `once`: the lock is given back nevertheless.
    pub async fn release_done(mut self) -> Result<(), LockError> {
        let Some(once) = self.once.take() else {
            self.release().await?;
            return Err(LockError::config(
                "once",
                "`release_done` does not know for how long to remember it; ask for the lock with \
                 `.once(time)`",
            ));
        };
        once.end(true);
        self.release().await
    }

    fn section(&self) -> &Arc<Section> {
        self.section.get()
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.section().show("LockGuard", f)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        drop(self.once.take());
        // Nobody knows whether the work ended well. That does not make a body that it re-entered
        // unclean. The last reference gives the lock back in the background, without a hand-over.
        drop(self.section.leave());
    }
}
