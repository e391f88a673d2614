//! Leases that a store has ended by itself, until the manager collects them.

use tokio::sync::Notify;

use super::Owner;
use crate::sync::{Mutex, found};

/// Owners whose leases have ended, until [`next_losses`](super::Backend::next_losses) returns
/// them.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    owners: Mutex<Vec<Owner>>,
    told: Notify,
}

impl Losses {
    pub(crate) fn tell(&self, owners: impl IntoIterator<Item = Owner>) {
        self.owners.lock().extend(owners);
        self.told.notify_waiters();
    }

    /// Waits for the next losses. Cancel-safe.
    pub(crate) async fn next(&self) -> Vec<Owner> {
        let owners = || {
            let owners = std::mem::take(&mut *self.owners.lock());
            (!owners.is_empty()).then_some(owners)
        };
        found(&self.told, owners).await
    }
}
