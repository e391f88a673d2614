//! What the clones of a store share.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::fault_state::FaultState;
use super::store::Store;
use crate::backend::Owner;
use crate::backend::losses::Losses;

#[derive(Debug, Default)]
pub(super) struct Shared {
    store: Mutex<Store>,
    pub(super) faults: FaultState,
    clones: Mutex<Vec<Weak<Losses>>>,
}

impl Shared {
    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        // No code of ours panics while it holds this.
        self.store
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn clones(&self) -> MutexGuard<'_, Vec<Weak<Losses>>> {
        self.clones
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// From now on this clone hears of losses.
    pub(super) fn tells(&self, losses: &Arc<Losses>) {
        let mut clones = self.clones();
        clones.retain(|clone| clone.strong_count() > 0);
        clones.push(Arc::downgrade(losses));
    }

    pub(super) fn tell_losses(&self, owners: &[Owner]) {
        for losses in self.clones().iter().filter_map(Weak::upgrade) {
            losses.tell(owners.iter().copied());
        }
    }
}
