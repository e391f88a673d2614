//! The mutex of a manager's parts, and how they wait for a condition.

use std::sync::{self, PoisonError, TryLockError};

pub(crate) use std::sync::MutexGuard;
use tokio::sync::Notify;

/// A mutex that a panic does not poison: code that holds it does not panic, or leaves consistent
/// data behind.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while the mutex is held.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Waits until `look` finds something. It looks again after each notification. Cancel-safe.
pub(crate) async fn found<T>(notify: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    // Each release looks here for a renewal in flight, and there is seldom one.
    if let Some(found) = look() {
        return found;
    }
    loop {
        let notified = notify.notified();
        tokio::pin!(notified);
        // Before the look, so that no later notification is missed.
        notified.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        notified.await;
    }
}
