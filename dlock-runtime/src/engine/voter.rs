//! An engine as one of several that vote: what it lets the store do that is made of
//! them.

use std::future::Future;
use std::sync::Arc;

use super::Running;
use crate::backend::Request;
use crate::store::{Abandoned, LeftBehind, Store};

impl<S: Store> Running<S> {
    /// Nobody waits any more for the release of this lease.
    pub(crate) fn give_back(self: &Arc<Self>, request: &Request) {
        let record = self.table.record(request.owner);
        let left = LeftBehind::unknown(self.unknown.take(request.owner, || self.time.now()));
        self.clean_up(request.clone(), Abandoned::at_rest(record), &left);
    }

    /// Until it has ended, or the engine is told to stop.
    pub(crate) fn spawn_until_stop(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.spawn(async move {
            tokio::select! {
                () = work => {}
                () = stopping.cancelled() => {}
            }
        });
    }
}
