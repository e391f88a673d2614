//! What the parts of a manager share and wait by.

use std::sync::{self, PoisonError, TryLockError};

pub(crate) use std::sync::MutexGuard;
use tokio::sync::Notify;

/// A mutex that no panic spoils: whoever has it locked does not panic, or leaves behind
/// what is whole.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` while somebody has it locked.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Waits until there is something to find, and looks whenever it is notified. Cancel-safe.
pub(crate) async fn found<T>(notify: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let notified = notify.notified();
        tokio::pin!(notified);
        // Before the look: what is told from now on is not missed.
        notified.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        notified.await;
    }
}
