//! The right to speak to the store for a queue.

use std::sync::Arc;

use super::name::Name;
use super::place::StorePlace;
use crate::lease::Follower;

/// The right to speak to the store for one queue. Dropped, it goes to the next
/// task in the queue, with the place in the store's queue if there is one; the
/// last one closes the queue.
pub(super) struct Leadership {
    queues: Arc<dyn Succession>,
    name: Name,
    pub(super) place: Option<StorePlace>,
    /// It has been passed on, or left to whoever comes.
    passed: bool,
}

/// What becomes of it.
pub(super) trait Succession: Send + Sync {
    /// Gives it to the next in the queue.
    fn pass_on(self: Arc<Self>, name: &Name, place: Option<StorePlace>);

    /// Nobody may come for it for long: the first who comes has it.
    fn let_loose(&self, name: &Name, place: Option<StorePlace>);

    /// Nobody works any more under the lease that it follows.
    fn lease_returns(&self, name: &Name);
}

impl Leadership {
    pub(super) fn new(queues: Arc<dyn Succession>, name: Name, place: Option<StorePlace>) -> Self {
        Self {
            queues,
            name,
            place,
            passed: false,
        }
    }

    pub(super) fn name(&self) -> &Name {
        &self.name
    }

    /// Leaves it to whoever comes first.
    pub(super) fn let_loose(mut self) {
        self.passed = true;
        let place = self.place.take().filter(StorePlace::can_be_kept);
        self.queues.let_loose(&self.name, place);
    }
}

impl Follower for Leadership {
    fn lease_returns(&self) {
        self.queues.lease_returns(&self.name);
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if !self.passed {
            let place = self.place.take().filter(StorePlace::can_be_kept);
            Arc::clone(&self.queues).pass_on(&self.name, place);
        }
    }
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.name)
            .field("in_store_queue", &self.place.is_some())
            .finish_non_exhaustive()
    }
}
