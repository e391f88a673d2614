//! Leases that a store has ended by itself, until somebody is told.

use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use super::Owner;

/// Owners whose leases have ended, on their way to
/// [`next_losses`](super::Backend::next_losses).
#[derive(Debug, Default)]
pub(crate) struct Losses {
    owners: Mutex<Vec<Owner>>,
    told: Notify,
}

impl Losses {
    pub(crate) fn tell(&self, owners: impl IntoIterator<Item = Owner>) {
        self.owners().extend(owners);
        self.told.notify_waiters();
    }

    /// Waits for the next. Cancel-safe.
    pub(crate) async fn next(&self) -> Vec<Owner> {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            let owners = std::mem::take(&mut *self.owners());
            if !owners.is_empty() {
                return owners;
            }
            told.await;
        }
    }

    fn owners(&self) -> MutexGuard<'_, Vec<Owner>> {
        // No code of ours panics while it holds this.
        self.owners
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
