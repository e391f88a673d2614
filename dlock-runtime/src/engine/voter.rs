//! An engine as one of several that vote: what it lets the store do that is made of
//! them.

use std::sync::Arc;
use std::time::Instant;

use super::call::Call;
use super::{Engine, Running};
use crate::backend::clock::Deadline;
use crate::backend::{BackendError, Owner, Request};
use crate::store::{Late, Store};

impl<S: Store> Engine<S> {
    /// Starts on the current runtime. Whether the store is there is not looked at.
    pub(crate) fn begin(&self) -> Result<&Arc<Running<S>>, BackendError> {
        self.set_running(self.prepare(self.time_here()?)?)?;
        self.running()
    }
}

impl<S: Store> Running<S> {
    /// An operation that is not the engine's own.
    pub(crate) fn call_until(&self, deadline: Deadline) -> Call<'_, S> {
        Call::until(self, deadline)
    }

    /// A command of a lease that is held was sent then and never answered: it may be
    /// run yet.
    pub(crate) fn may_come(&self, request: &Request, record: Option<&S::Record>, sent_at: Instant) {
        if let Late::Until(end) = self.store.late(request, record, sent_at) {
            let now = self.time.now();
            self.unknown
                .add(request.owner, sent_at, Some(end.at()), now);
        }
    }

    /// When that was sent, if it is of any concern still. Asked once, by whoever gives
    /// the lease back.
    pub(crate) fn what_may_come(&self, owner: Owner) -> Option<Instant> {
        self.unknown.take(owner, || self.time.now())
    }
}
